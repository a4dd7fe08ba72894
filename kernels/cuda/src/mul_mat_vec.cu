// Products of quantized weights with up to 8 columns, which take most of the time of decoding few
// sequences. Compiled with -DTYPE=Q4_0, ... (blocks.cuh), and -DTHREADS and -DSHARED, a block's
// threads and bytes of shared memory.
//
// A block computes 16 rows. Its warps take chunks of K in turn. A warp copies the chunk's bytes of
// all rows into its own stage of shared memory, 16 bytes at a time whatever the alignment, while it
// multiplies the chunk before. Tensor cores give the exact integer products, with up to 8 columns
// at the cost of one. Chunks' sums go through shared memory to one thread for each element, which
// adds them in order (blocks.cuh).
#include "activations.cuh"
#include "weights.cuh"

typedef TYPE Type;

constexpr int ROWS = 16;
constexpr int HALF = ROWS / 2;
constexpr int STAGES = 2;
constexpr int N_COLS = 8;
constexpr int OWN = 2;  // rows and columns of a thread's sums

// A stage has rows, then columns. Each is an odd number of 16 bytes, so 8 are in different banks.
constexpr int PIECE = 16;
constexpr int ROW_PIECES = ((Type::BYTES + PIECE - 1 + PIECE - 1) / PIECE) | 1;
constexpr int ROW_SLOT = PIECE * ROW_PIECES;
constexpr int SCALES = CHUNK, SUMS = CHUNK + 4 * CHUNK_BLOCKS;  // within a column
constexpr int COLUMN_SLOT = CHUNK + 8 * CHUNK_BLOCKS + PIECE;
constexpr int COLUMNS = ROWS * ROW_SLOT;  // where columns begin
constexpr int STAGE = COLUMNS + N_COLS * COLUMN_SLOT;

constexpr int WARPS = THREADS / WARP;
constexpr int N_SUMS = STAGES * WARPS;  // chunks whose sums are in shared memory
constexpr int OUTPUTS = ROWS * N_COLS;
static_assert(SHARED == WARPS * STAGES * STAGE + 4 * N_SUMS * OUTPUTS, "as in ops/quantized.py");
static_assert(OUTPUTS <= THREADS, "a thread for each element");
constexpr int BLOCKS_PER_SM = 12 / WARPS;  // no architecture spills registers

// What a block computes: rows of one matrix, or half as many of two, times columns.
struct Work {
    const char *low, *high;  // rows 0 and 8 of the 16
    int n_low, n_high;       // rows of the matrix from there on; 0 or less: it ends before
    i64 row_bytes;
    int n_blocks;            // blocks of 32 values in a row
    int n_columns;
    const char *columns;     // form q8
    char *to;                // row 0 of the first column's results
    i64 to_bytes;            // from one column to the next

    DEVICE int n_chunks() const { return (n_blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS; }
    DEVICE int kp() const { return n_chunks() * CHUNK; }

    // Row r of the first or second 8; past the end of the matrix, its last row.
    DEVICE const char *row(bool second, int r) const {
        const int last = (second ? n_high : n_low) - 1;
        return (second ? high : low) + (r < last ? r : last) * row_bytes;
    }

    // True if all rows begin at multiples of n bytes.
    DEVICE bool is_aligned(int n) const {
        const u64 starts = reinterpret_cast<u64>(low) | reinterpret_cast<u64>(high);
        return (starts | static_cast<u64>(row_bytes)) % static_cast<u64>(n) == 0;
    }
};

DEVICE int misalignment(const char *at) {
    return static_cast<int>(reinterpret_cast<u64>(at) % PIECE);
}

// --- copying chunks into stages ---

constexpr int ROW_LANES = 8;  // lanes that copy a row: 128 bytes at once
constexpr int ROW_STEP = WARP / ROW_LANES;
constexpr int OWN_ROWS = ROWS / ROW_STEP;
constexpr int VALUE_LANES = CHUNK / PIECE;  // lanes that copy a column's values
constexpr int COLUMN_STEP = WARP / VALUE_LANES;
constexpr int SCALE_LANES = 4 * CHUNK_BLOCKS / PIECE;  // lanes for its scales; as many for its sums

// What a lane copies of its warp's next chunk, and where to.
struct Loader {
    const char *rows[OWN_ROWS];  // rows lane / 8, 4 more, ...
    const char *values;          // values of column lane / 16
    const char *scales;          // scales or sums of column lane / 4
    i64 column_step;             // bytes between columns of `values`
    int n_columns;
    int left;         // blocks of 32 from this chunk on
    bool is_aligned;  // chunks of rows are whole pieces
    int row_slot, value_slot, scale_slot;

    DEVICE explicit Loader(const Work &w)
        : n_columns(w.n_columns),
          left(w.n_blocks - warp_id() * CHUNK_BLOCKS),
          is_aligned(Type::BYTES % PIECE == 0 && w.is_aligned(PIECE)) {
        const int lane = lane_id(), chunk = warp_id(), kp = w.kp();
        const i64 size = q8_column_bytes(kp);
        row_slot = lane / ROW_LANES * ROW_SLOT + PIECE * (lane % ROW_LANES);
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            const int r = ROW_STEP * i;  // row of the warp's first lane
            rows[i] = w.row(r >= HALF, lane / ROW_LANES + r % HALF);
            rows[i] += chunk * Type::BYTES + PIECE * (lane % ROW_LANES);
        }
        value_slot = COLUMNS + lane / VALUE_LANES * COLUMN_SLOT + PIECE * (lane % VALUE_LANES);
        const i8 *const q = q8_values(w.columns + lane / VALUE_LANES * size, kp) + chunk * CHUNK;
        values = reinterpret_cast<const char *>(q) + PIECE * (lane % VALUE_LANES);
        column_step = COLUMN_STEP * size;
        const int c = lane / (2 * SCALE_LANES), first = chunk * CHUNK_BLOCKS;
        scale_slot = COLUMNS + c * COLUMN_SLOT + SCALES + PIECE * (lane % (2 * SCALE_LANES));
        const float *const d = q8_scales(w.columns + c * size, kp) + first;
        const int *const sum = q8_sums(w.columns + c * size, kp) + first;
        scales = lane / SCALE_LANES % 2 == 0 ? reinterpret_cast<const char *>(d)
                                             : reinterpret_cast<const char *>(sum);
        scales += PIECE * (lane % SCALE_LANES);
    }

    // Copy the aligned pieces that contain the chunk's `n` bytes of each row.
    template <bool ALIGNED> DEVICE void load_rows(char *stage, int n) const {
        const int rest = n - PIECE * (lane_id() % ROW_LANES);
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            const int shift = ALIGNED ? 0 : misalignment(rows[i]);
            const char *const from = rows[i] - shift;
            char *const to = stage + row_slot + i * ROW_STEP * ROW_SLOT;
#pragma unroll
            for (int j = 0; j < ROW_SLOT; j += PIECE * ROW_LANES) {
                if (j < rest + shift) copy_async(to + j, from + j);
            }
        }
    }

    DEVICE void load_columns(char *stage) const {
        const char *from = values;
#pragma unroll
        for (int c = 0; c < N_COLS; c += COLUMN_STEP) {
            const bool is_there = c + lane_id() / VALUE_LANES < n_columns;
            if (is_there) copy_async(stage + value_slot + c * COLUMN_SLOT, from);
            from += column_step;
        }
        if (lane_id() / (2 * SCALE_LANES) < n_columns) copy_async(stage + scale_slot, scales);
    }

    // Begin to copy the next chunk as one group; the group is empty past the last chunk.
    DEVICE void load(char *stage) {
        if (left > 0) {
            if (is_aligned && left >= CHUNK_BLOCKS) {
                load_rows<true>(stage, Type::BYTES);
            } else {
                const bool is_whole = left >= CHUNK_BLOCKS;
                const int n = left * (Type::BYTES / CHUNK_BLOCKS);
                load_rows<false>(stage, is_whole ? Type::BYTES : n);
            }
            load_columns(stage);
        }
        copy_async_commit();
        left -= WARPS * CHUNK_BLOCKS;
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) rows[i] += WARPS * Type::BYTES;
        values += WARPS * CHUNK;
        scales += WARPS * 4 * CHUNK_BLOCKS;
    }
};

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

// Where a lane reads in a stage.
struct Multiplier {
    int rows[OWN];     // slots of rows lane / 4 and lane / 4 + 8
    int shift[OWN];    // misalignment of these rows to 16 bytes
    int columns[OWN];  // slots
    int matrices;
    int sums;         // place of its first sum among a chunk's sums
    bool is_aligned;  // all rows are aligned to 4 bytes

    DEVICE explicit Multiplier(const Work &w) : is_aligned(w.is_aligned(4)) {
        const int g = lane_id() / 4, t = lane_id() % 4, row = lane_id() % 8;
        // past the last column, read the last one; it is not stored
        const int last = w.n_columns - 1;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            rows[i] = (g + HALF * i) * ROW_SLOT;
            shift[i] = misalignment(w.row(i == 1, g));
        }
#pragma unroll
        for (int c = 0; c < OWN; c++) {
            columns[c] = COLUMNS + (OWN * t + c < last ? OWN * t + c : last) * COLUMN_SLOT;
        }
        matrices = COLUMNS + (row < last ? row : last) * COLUMN_SLOT + PIECE * (lane_id() / 8);
        sums = ROWS * 2 * t + g;
    }

    // Compute the sums of a stage's chunk: the sum of row r and column c goes to to[ROWS * c + r].
    // `left`: blocks from this chunk on.
    DEVICE void multiply(const char *stage, int chunk, int left, float *to) const {
        Operands of;
        of.matrices = stage + matrices;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int at = (shift[i] + chunk * (Type::BYTES % PIECE)) % PIECE;
            of.rows[i] = stage + rows[i] + at;
            of.columns[i] = stage + columns[i];
        }
        float s[OWN][OWN] = {};
        constexpr bool CAN_BE_ALIGNED = Type::BYTES % 4 == 0, IS_WHOLE = Type::VALUES == CHUNK;
        if (CAN_BE_ALIGNED && is_aligned && left >= CHUNK_BLOCKS) {
            add_blocks<CAN_BE_ALIGNED, true>(s, of, CHUNK_BLOCKS);
        } else {
            add_blocks<false, IS_WHOLE>(s, of, left);
        }
#pragma unroll
        for (int i = 0; i < OWN * OWN; i++) {
            const int r = i / OWN, c = i % OWN;
            to[sums + ROWS * c + HALF * r] = s[r][c];
        }
    }
};

// --- a block ---

// The element of row threadIdx.x % 16 and column threadIdx.x / 16.
DEVICE float product(const Work &w) {
    DYNAMIC_SHARED(char, shared);
    float *const sums = reinterpret_cast<float *>(shared + WARPS * STAGES * STAGE);
    char *const stages = shared + warp_id() * STAGES * STAGE;
    Loader loader(w);
    const Multiplier multiplier(w);
    const int n_chunks = w.n_chunks();
    for (int i = 0; i < STAGES; i++) loader.load(stages + i * STAGE);
    if constexpr (Type::HAS_GRID) {
        Type::prepare();
        sync_block();
    }

    float total = 0.0f;
    int stage = 0;
    for (int begin = 0; begin < n_chunks; begin += N_SUMS) {
        const int end = begin + N_SUMS < n_chunks ? begin + N_SUMS : n_chunks;
        for (int chunk = begin + warp_id(); chunk < end; chunk += WARPS) {
            copy_async_wait<STAGES - 1>();
            sync_warp();
            const int left = loader.left + STAGES * WARPS * CHUNK_BLOCKS;
            multiplier.multiply(stages + stage, chunk, left, sums + (chunk - begin) * OUTPUTS);
            sync_warp();
            loader.load(stages + stage);
            stage = stage < (STAGES - 1) * STAGE ? stage + STAGE : 0;
        }
        sync_block();
        if (threadIdx.x < OUTPUTS) {
            for (int i = 0; i < end - begin; i++) total += sums[i * OUTPUTS + threadIdx.x];
        }
        if (end < n_chunks) sync_block();
    }
    return total;
}

// GATED: the first half of the rows are gates, the other half their factors.
template <bool GATED> DEVICE void compute(const Params &p, const Work &w) {
    const float v = product(w);
    const int r = threadIdx.x % ROWS, c = threadIdx.x / ROWS;
    const float other = GATED ? shfl_xor(v, HALF) : 0.0f;
    if (c >= w.n_columns || r >= (GATED && w.n_low > HALF ? HALF : w.n_low)) return;
    float *to = reinterpret_cast<float *>(w.to + c * w.to_bytes);
    to[r] = GATED ? glu(p, 0, v, other) : v;
}

// Tile `tile` of the matrix at `offset` of tensor 1, or of tensors 1 and 3 if GATED.
template <bool GATED> DEVICE Work work_of(const Params &p, u32 tile, i64 offset, char *to) {
    constexpr int N = GATED ? HALF : ROWS;
    const Tensor &a = p.t[1];
    const i64 first = static_cast<i64>(tile) * N;
    Work w;
    w.row_bytes = a.nb[1];
    w.low = a.data + offset + first * w.row_bytes;
    w.high = GATED ? p.t[3].data + offset + first * w.row_bytes : w.low + HALF * w.row_bytes;
    w.n_low = static_cast<int>(a.ne[1] - first);
    w.n_high = GATED ? w.n_low : w.n_low - HALF;
    w.n_blocks = static_cast<int>(a.ne[0] / BLOCK);
    w.to = to + 4 * first;
    return w;
}

// Grid: (tile and group of columns, batch). The groups of a tile are neighbors: they read the same
// rows.
template <bool GATED> DEVICE void mul_mat(const Params &p) {
    u32 tile = blockIdx.x, group = 0;
    const int n_columns = static_cast<int>(p.t[2].ne[1]);
    if (n_columns > N_COLS) {
        const u32 n_groups = (n_columns + N_COLS - 1) / N_COLS;
        tile = blockIdx.x / n_groups, group = blockIdx.x % n_groups;
    }
    const BatchMatrix matrix(p, blockIdx.y);
    const int first = static_cast<int>(group) * N_COLS;
    char *const to = at(p.t[0], 0, first, matrix.i2, matrix.i3);
    Work w = work_of<GATED>(p, tile, matrix.weights, to);
    w.n_columns = n_columns - first > N_COLS ? N_COLS : n_columns - first;
    const i64 column = static_cast<i64>(blockIdx.y) * n_columns + first;
    w.columns = p.prepared[0] + column * q8_column_bytes(w.kp());
    w.to_bytes = p.t[0].nb[1];
    compute<GATED>(p, w);
}

MERGING_KERNEL(mul_mat_vec, THREADS, BLOCKS_PER_SM) { mul_mat<false>(p); }
KERNEL(gate_up_vec, THREADS, BLOCKS_PER_SM) { mul_mat<true>(p); }
