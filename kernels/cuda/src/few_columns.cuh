// What a warp computes for few columns: a chunk of 16 rows of quantized weights times up to 8 columns
// in form q8 (blocks.cuh). Tensor cores give the exact integer products, with up to 8 columns at the
// cost of one. Compiled with -DTYPE=Q4_0, ...; used by mul_mat_few.cu and mul_mat_vec.cu.
#pragma once
#include "weights.cuh"

typedef TYPE Type;

constexpr int ROWS = 16;
constexpr int HALF = ROWS / 2;
constexpr int N_COLS = 8;
constexpr int OWN = 2;  // rows and columns of a thread's sums
constexpr int OUTPUTS = ROWS * N_COLS;

// Slots of rows and of columns are an odd number of 16 bytes, so 8 are in different banks.
constexpr int PIECE = 16;
constexpr int ROW_PIECES = ((Type::BYTES + PIECE - 1 + PIECE - 1) / PIECE) | 1;
constexpr int ROW_SLOT = PIECE * ROW_PIECES;
constexpr int SCALES = CHUNK, SUMS = CHUNK + 4 * CHUNK_BLOCKS;  // within a column
constexpr int COLUMN_SLOT = CHUNK + 8 * CHUNK_BLOCKS + PIECE;

DEVICE int misalignment(const char *at) {
    return static_cast<int>(reinterpret_cast<u64>(at) % PIECE);
}

// --- copying chunks ---

constexpr int ROW_LANES = 8;  // lanes that copy a row: 128 bytes at once
constexpr int ROW_STEP = WARP / ROW_LANES;
constexpr int OWN_ROWS = ROWS / ROW_STEP;
constexpr int VALUE_LANES = CHUNK / PIECE;  // lanes that copy a column's values
constexpr int COLUMN_STEP = WARP / VALUE_LANES;
constexpr int SCALE_LANES = 4 * CHUNK_BLOCKS / PIECE;  // lanes for its scales; as many for its sums

// Copy the aligned pieces that contain `n` bytes of the chunk in each row. `rows`: this lane's first
// byte in rows lane / 8, 4 more, ...; `to`: its place in the first one's slot.
template <bool ALIGNED>
DEVICE void copy_rows(char *to, const char *const (&rows)[OWN_ROWS], int n) {
    const int rest = n - PIECE * (lane_id() % ROW_LANES);
#pragma unroll
    for (int i = 0; i < OWN_ROWS; i++) {
        const int shift = ALIGNED ? 0 : misalignment(rows[i]);
        const char *const from = rows[i] - shift;
        char *const slot = to + i * ROW_STEP * ROW_SLOT;
#pragma unroll
        for (int j = 0; j < ROW_SLOT; j += PIECE * ROW_LANES) {
            if (j < rest + shift) copy_async(slot + j, from + j);
        }
    }
}

// Copy the bytes of rows from a chunk on, `left` blocks; ALIGNED: to 16 bytes.
DEVICE void copy_chunk(char *to, const char *const (&rows)[OWN_ROWS], int left, bool is_aligned) {
    if (is_aligned && left >= CHUNK_BLOCKS) {
        copy_rows<true>(to, rows, Type::BYTES);
    } else {
        const bool is_whole = left >= CHUNK_BLOCKS;
        const int n = left * (Type::BYTES / CHUNK_BLOCKS);
        copy_rows<false>(to, rows, is_whole ? Type::BYTES : n);
    }
}

// --- a chunk's sums ---

// What a thread multiplies. Tensor cores give it the products of rows lane / 4 and lane / 4 + 8
// with columns 2 * (lane % 4) and the next.
struct Operands {
    const char *rows[OWN];     // the chunk's bytes
    const char *columns[OWN];  // slots
    const char *matrices;      // this lane's row of the first load_matrix_x4
};

// Multiply block b with two registers of columns, in integers. `sums`: the columns' sums. `a_sum`
// becomes these, or their products with minima, or the product of the second 16 values if those have
// their own scales.
template <class W, class B>
DEVICE void multiply_block(int (&isum)[OWN][OWN], int (&a_sum)[OWN][OWN], const B (&rows)[OWN],
                           int b, const u32 (&column)[2], const int (&sums)[OWN]) {
    const int t = lane_id() % 4;
    u32 w[4];
#pragma unroll
    for (int i = 0; i < OWN * OWN; i++) a_sum[i / OWN][i % OWN] = sums[i % OWN];
    if constexpr (W::IN_16) {
        W::words(rows[0], b, t, w[0], w[2]);
        W::words(rows[1], b, t, w[1], w[3]);
        int low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
        mma_s8_k16(low, {w[0], w[1]}, column[0]);
        mma_s8_k16(high, {w[2], w[3]}, column[1]);
#pragma unroll
        for (int i = 0; i < OWN * OWN; i++) {
            const int r = i / OWN, c = i % OWN, d = 2 * r + c;
            isum[r][c] = low[d];
            a_sum[r][c] = high[d];
        }
    } else if constexpr (W::HAS_SUB_SCALES) {
        shifted_words<W>(rows[0], b, t, w[0], w[2]);
        shifted_words<W>(rows[1], b, t, w[1], w[3]);
        int low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
        mma_s8_k16(low, {w[0], w[1]}, column[0]);
        mma_s8_k16(high, {w[2], w[3]}, column[1]);
#pragma unroll
        for (int i = 0; i < OWN * OWN; i++) {
            const int r = i / OWN, c = i % OWN, d = 2 * r + c;
            int low_scale, high_scale;
            W::sub_scales(rows[r], b, low_scale, high_scale);
            isum[r][c] = (low_scale * low[d] + high_scale * high[d]) >> W::SHIFT;
        }
    } else {
        W::words(rows[0], b, t, w[0], w[2]);
        W::words(rows[1], b, t, w[1], w[3]);
        int d[4] = {0, 0, 0, 0};
        mma_s8_k32(d, w, column);
#pragma unroll
        for (int i = 0; i < OWN * OWN; i++) {
            const int r = i / OWN, c = i % OWN;
            isum[r][c] = d[2 * r + c] - W::OFFSET * sums[c];
        }
        if constexpr (W::HAS_SUB_MINS) {
            u32 mins[4];
            mins_of<W>(rows[0], b, mins[0], mins[2]);
            mins_of<W>(rows[1], b, mins[1], mins[3]);
            int products[4] = {0, 0, 0, 0};
            mma_s8_k32(products, mins, column);
#pragma unroll
            for (int i = 0; i < OWN * OWN; i++) a_sum[i / OWN][i % OWN] = products[i];
        }
    }
}

constexpr int FEW = 4;  // blocks whose scales are loaded at once

DEVICE void load_few(float (&to)[FEW], const char *from) {
    const float4 v = *reinterpret_cast<const float4 *>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

DEVICE void load_few(int (&to)[FEW], const char *from) {
    const int4 v = *reinterpret_cast<const int4 *>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// Add blocks 0 .. n_blocks - 1 of a chunk; all if WHOLE. ALIGNED: rows are aligned to 4 bytes.
template <bool ALIGNED, bool WHOLE>
DEVICE void add_blocks(float (&s)[OWN][OWN], const Operands &of, int n_blocks) {
    const Bytes<ALIGNED> rows[OWN] = {{of.rows[0]}, {of.rows[1]}};
#pragma unroll
    for (int first = 0; first < CHUNK_BLOCKS; first += FEW) {
        if (first > 0) sync_warp();  // limits the blocks loaded at once, and so the registers
        float scales[OWN][FEW];
        int sums[OWN][FEW];
        u32 columns[FEW / 2][4];  // two registers for each block
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            load_few(scales[c], of.columns[c] + SCALES + 4 * first);
            load_few(sums[c], of.columns[c] + SUMS + 4 * first);
        }
#pragma unroll
        for (int i = 0; i < FEW / 2; i++) {
            load_matrix_x4(columns[i], of.matrices + BLOCK * (first + 2 * i));
        }
#pragma unroll
        for (int i = 0; i < FEW; i++) {
            const int b = first + i;
            if (!WHOLE && b >= n_blocks) return;
            const u32 column[2] = {columns[i / 2][i % 2 * 2], columns[i / 2][i % 2 * 2 + 1]};
            int isum[OWN][OWN], a_sum[OWN][OWN], own_sums[OWN];
#pragma unroll
            for (int c = 0; c < OWN; c++) own_sums[c] = sums[c][i];
            multiply_block<Type>(isum, a_sum, rows, b, column, own_sums);
#pragma unroll
            for (int j = 0; j < OWN * OWN; j++) {
                const int r = j / OWN, c = j % OWN;
                float w_scale, w_min;
                Type::scales(rows[r], b, w_scale, w_min);
                s[r][c] = accumulate<Type>(s[r][c], static_cast<float>(isum[r][c]), scales[c][i],
                                           static_cast<float>(a_sum[r][c]), w_scale, w_min);
            }
        }
    }
}

// Where a lane reads.
struct Places {
    int rows[OWN];     // slots of rows lane / 4 and lane / 4 + 8
    int columns[OWN];  // slots of columns 2 * (lane % 4) and the next
    int matrices;      // its part of load_matrix_x4 among the columns

    DEVICE explicit Places(int n_columns) {
        const int g = lane_id() / 4, t = lane_id() % 4, row = lane_id() % 8;
        // past the last column, read the last one; it is not stored
        const int last = n_columns - 1;
#pragma unroll
        for (int i = 0; i < OWN; i++) rows[i] = (g + HALF * i) * ROW_SLOT;
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            columns[c] = (OWN * t + c < last ? OWN * t + c : last) * COLUMN_SLOT;
        }
        matrices = (row < last ? row : last) * COLUMN_SLOT + PIECE * (lane_id() / 8);
    }
};

// Add the products of a chunk: s[r][c] is that of the lane's row r and column c. `shift`: misalignment
// of the chunk to 16 bytes in both rows. `left`: blocks from the chunk on. `is_aligned`: all rows
// are aligned to 4 bytes.
DEVICE void add_chunk(float (&s)[OWN][OWN], const Places &places, const char *rows,
                      const char *columns, const int (&shift)[OWN], int left, bool is_aligned) {
    Operands of;
    of.matrices = columns + places.matrices;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        of.rows[i] = rows + places.rows[i] + shift[i];
        of.columns[i] = columns + places.columns[i];
    }
    constexpr bool CAN_BE_ALIGNED = Type::BYTES % 4 == 0, IS_WHOLE = Type::VALUES == CHUNK;
    if (CAN_BE_ALIGNED && is_aligned && left >= CHUNK_BLOCKS) {
        add_blocks<CAN_BE_ALIGNED, true>(s, of, CHUNK_BLOCKS);
    } else {
        add_blocks<false, IS_WHOLE>(s, of, left);
    }
}
