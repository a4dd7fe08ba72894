// Products of quantized weights with up to 8 columns. They take most of the time of decoding few
// sequences, and are limited by memory bandwidth. Compiled with -DTYPE=Q4_0, ... (blocks.cuh).
//
// A block computes many tiles of 16 rows, or of 8 rows of two matrices. Its warps take the chunks of
// these tiles in turn, one tile after the other. A warp copies its next chunks into its own stages
// of shared memory, 16 bytes at a time whatever the alignment, while it multiplies one
// (few_columns.cuh). The columns stay in shared memory: their chunks come with those of the first
// tile. If there is no room for them, they come with every chunk of rows.
// Chunks' sums go through shared memory to one thread for each element of a tile, which adds them in
// order (blocks.cuh), whenever all warps have multiplied ROUNDS chunks.
#include "activations.cuh"
#include "few_columns.cuh"

constexpr int MAX_THREADS = 384;
constexpr int ROUNDS = 2;
constexpr int STAGE_ROWS = ROWS * ROW_SLOT;

// Parameters of every kernel here; 0 to 2 are those of the GLU.
constexpr int N_STAGES = 3, COLUMNS_STAY = 4, N_TILES = 5;

// Matrices, columns, and how they are divided.
struct Work {
    const char *from[2];  // the matrix; or gates and their factors
    const char *columns;  // form q8
    char *to;
    i64 to_bytes;  // from one column to the next
    int n_rows, row_bytes;
    int n_blocks;  // of 32 values in a row
    int n_chunks, n_columns, n_tiles;
    int n_sharing;  // thread blocks that share the tiles
    int n_stages;
    bool columns_stay;
    bool in_pieces, in_words;  // chunks of rows are aligned to 16 bytes; rows to 4

    DEVICE int stage_bytes() const {
        return STAGE_ROWS + (columns_stay ? 0 : n_columns * COLUMN_SLOT);
    }
};

template <bool GATED> DEVICE Work work_of(const Params &p) {
    const Tensor &a = p.t[1];
    const BatchMatrix matrix(p, blockIdx.y);
    Work w;
    w.from[0] = a.data + matrix.weights;
    w.from[1] = GATED ? p.t[3].data + matrix.weights : w.from[0];
    w.n_rows = static_cast<int>(a.ne[1]), w.row_bytes = static_cast<int>(a.nb[1]);
    w.n_blocks = static_cast<int>(a.ne[0]) / BLOCK;
    w.n_chunks = (w.n_blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    w.n_columns = static_cast<int>(p.t[2].ne[1]);
    w.n_stages = static_cast<int>(p.param[N_STAGES].i);
    w.columns_stay = p.param[COLUMNS_STAY].i != 0;
    w.n_tiles = static_cast<int>(p.param[N_TILES].i);
    w.n_sharing = static_cast<int>(p.n_blocks);
    w.columns = p.prepared[0] +
                static_cast<i64>(blockIdx.y) * w.n_columns * q8_column_bytes(w.n_chunks * CHUNK);
    w.to = at(p.t[0], 0, 0, matrix.i2, matrix.i3);
    w.to_bytes = p.t[0].nb[1];
    const u64 starts = reinterpret_cast<u64>(w.from[0]) | reinterpret_cast<u64>(w.from[1]);
    const u32 all = static_cast<u32>(starts) | static_cast<u32>(w.row_bytes);
    w.in_pieces = Type::BYTES % PIECE == 0 && all % PIECE == 0;
    w.in_words = all % 4 == 0;
    return w;
}

// The rows of a tile; rows 8..15 are those of the second matrix if GATED. Past the end of the matrix,
// they are its last row.
template <bool GATED> struct TileRows {
    const char *first[GATED ? 2 : 1];
    int last;
    u32 row_bytes;

    // From chunk `chunk` on, and `more` bytes.
    DEVICE TileRows(const Work &w, int tile, int chunk, int more) : row_bytes(w.row_bytes) {
        const int begin = tile * (GATED ? HALF : ROWS);
        last = w.n_rows - 1 - begin;
        const i64 offset = bytes(begin) + chunk * Type::BYTES + more;
        first[0] = w.from[0] + offset;
        if (GATED) first[GATED] = w.from[1] + offset;
    }

    DEVICE i64 bytes(int n_rows) const {
        return static_cast<i64>(static_cast<u64>(static_cast<u32>(n_rows)) * row_bytes);
    }

    // Row r of the first or second 8.
    DEVICE const char *row(bool second, int r) const {
        if (!GATED && second) r += HALF;
        return first[GATED && second] + bytes(r < last ? r : last);
    }
};

// The chunks of a warp, one after the other.
struct Chunks {
    int tile, chunk;
    const int tile_step, chunk_step;

    DEVICE explicit Chunks(const Work &w)
        : tile(static_cast<int>(blockIdx.x) + warp_id() / w.n_chunks * w.n_sharing),
          chunk(warp_id() % w.n_chunks),
          tile_step(static_cast<int>(blockDim.x) / WARP / w.n_chunks * w.n_sharing),
          chunk_step(static_cast<int>(blockDim.x) / WARP % w.n_chunks) {}

    DEVICE void advance(const Work &w) {
        tile += tile_step, chunk += chunk_step;
        if (chunk >= w.n_chunks) tile += w.n_sharing, chunk -= w.n_chunks;
    }

    DEVICE bool is_there(const Work &w) const { return tile < w.n_tiles; }
    DEVICE bool is_of_first_tile() const { return tile == static_cast<int>(blockIdx.x); }
    DEVICE int left(const Work &w) const { return w.n_blocks - chunk * CHUNK_BLOCKS; }
};

// Copy a chunk of all columns, as values, scales and sums.
DEVICE void copy_columns(char *to, const Work &w, int chunk) {
    const int lane = lane_id(), kp = w.n_chunks * CHUNK;
    const i64 size = q8_column_bytes(kp);
    const int first = lane / VALUE_LANES, piece = PIECE * (lane % VALUE_LANES);
    const char *from = w.columns + first * size + chunk * CHUNK + piece;
#pragma unroll
    for (int i = 0; i < N_COLS; i += COLUMN_STEP) {
        if (first + i < w.n_columns) copy_async(to + (first + i) * COLUMN_SLOT + piece, from);
        from += COLUMN_STEP * size;
    }
    const int c = lane / (2 * SCALE_LANES), is_sum = lane / SCALE_LANES % 2;
    if (c < w.n_columns) {
        const i64 block = kp / BLOCK * is_sum + chunk * CHUNK_BLOCKS;
        const char *const scales = w.columns + c * size + kp + 4 * block;
        copy_async(to + c * COLUMN_SLOT + SCALES + PIECE * (lane % (2 * SCALE_LANES)),
                   scales + PIECE * (lane % SCALE_LANES));
    }
}

// Where the columns of a chunk are.
DEVICE char *columns_of(const Work &w, char *columns, char *stage, int chunk) {
    return w.columns_stay ? columns + chunk * w.n_columns * COLUMN_SLOT : stage + STAGE_ROWS;
}

// Begin to copy a chunk as one group; the group is empty past the last one.
template <bool GATED>
DEVICE void load(const Work &w, const Chunks &next, char *columns, char *stage) {
    if (next.is_there(w)) {
        const int lane = lane_id(), piece = PIECE * (lane % ROW_LANES);
        const TileRows<GATED> of(w, next.tile, next.chunk, piece);
        const char *rows[OWN_ROWS];
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++) {
            const int r = ROW_STEP * i;  // row of the warp's first lane
            rows[i] = of.row(r >= HALF, lane / ROW_LANES + r % HALF);
        }
        char *const to = stage + lane / ROW_LANES * ROW_SLOT + piece;
        copy_chunk(to, rows, next.left(w), w.in_pieces);
        if (!w.columns_stay || next.is_of_first_tile()) {
            copy_columns(columns_of(w, columns, stage, next.chunk), w, next.chunk);
        }
    }
    copy_async_commit();
}

// Multiply a chunk. Sums are where their banks differ: that of row r of the tile and of column c is
// at index_of(r, c), and the thread of that number adds it.
DEVICE int index_of(int r, int c) {
    const int pair = c / OWN;
    return pair * OWN * ROWS + ((c % OWN * ROWS + r) ^ pair * HALF);
}

template <bool GATED>
DEVICE void multiply(const Work &w, const Places &places, const Chunks &now, const char *columns,
                     const char *stage, float *sums) {
    const int g = lane_id() / 4, t = lane_id() % 4;
    int shift[OWN] = {};
    if (!w.in_pieces) {
        const TileRows<GATED> of(w, now.tile, now.chunk, 0);
#pragma unroll
        for (int i = 0; i < OWN; i++) shift[i] = misalignment(of.row(i == 1, g));
    }
    float s[OWN][OWN] = {};
    add_chunk(s, places, stage, columns, shift, now.left(w), w.in_words);
#pragma unroll
    for (int i = 0; i < OWN * OWN; i++) {
        const int r = i / OWN, c = i % OWN;
        sums[index_of(g + HALF * r, OWN * t + c)] = s[r][c];
    }
}

// Adds the sums of an element of each tile.
template <bool GATED> struct Adder {
    const Params &p;
    const Work &w;
    int tile, chunk;  // the next one to add
    int row, column;  // in a tile
    float total;

    DEVICE Adder(const Params &p, const Work &w)
        : p(p), w(w), tile(static_cast<int>(blockIdx.x)), chunk(0), total(0.0f) {
        const int pair = threadIdx.x / WARP, at = lane_id() ^ (pair * HALF % WARP);
        row = at % ROWS, column = OWN * pair + at / ROWS;
    }

    // Add the sums of the next `n` chunks.
    DEVICE void add(const float *sums, int n) {
        for (int i = 0; i < n;) {
            const int left = w.n_chunks - chunk, end = i + left < n ? i + left : n;
            chunk += end - i;
#pragma unroll 8
            for (; i < end; i++) total += sums[i * OUTPUTS + threadIdx.x];
            if (chunk < w.n_chunks) return;
            store();
            total = 0.0f, chunk = 0, tile += w.n_sharing;
        }
    }

    DEVICE void store() const {
        const float other = GATED ? shfl_xor(total, HALF) : 0.0f;
        const int to_row = tile * (GATED ? HALF : ROWS) + row;
        if (column >= w.n_columns || to_row >= w.n_rows || (GATED && row >= HALF)) return;
        float *const to = reinterpret_cast<float *>(w.to + column * w.to_bytes);
        to[to_row] = GATED ? glu(p, 0, total, other) : total;
    }
};

DEVICE void wait_for_first(int n_stages) {
    if (n_stages == 4) {
        copy_async_wait<3>();
    } else if (n_stages == 3) {
        copy_async_wait<2>();
    } else if (n_stages == 2) {
        copy_async_wait<1>();
    } else {
        copy_async_wait<0>();
    }
}

// Grid: (tiles' blocks, batch).
template <bool GATED> DEVICE void mul_mat(const Params &p) {
    DYNAMIC_SHARED(char, columns);
    const Work w = work_of<GATED>(p);
    const int n_warps = static_cast<int>(blockDim.x) / WARP, stage_bytes = w.stage_bytes();
    const int stayed = w.columns_stay ? w.n_chunks * w.n_columns * COLUMN_SLOT : 0;
    char *const stages = columns + stayed + warp_id() * w.n_stages * stage_bytes;
    // sums of ROUNDS chunks of all warps, twice: some are written while others are added
    float *const windows =
        reinterpret_cast<float *>(columns + stayed + n_warps * w.n_stages * stage_bytes);
    const int own_tiles = (w.n_tiles - static_cast<int>(blockIdx.x) + w.n_sharing - 1) / w.n_sharing;
    const int n_chunks = own_tiles * w.n_chunks, n_rounds = (n_chunks + n_warps - 1) / n_warps;
    // the first round in which a warp may read columns that another one has copied
    const int shared_round = w.n_chunks / n_warps;
    const Places places(w.n_columns);
    Chunks now(w), next(w);
    Adder<GATED> adder(p, w);
    for (int i = 0; i < w.n_stages; i++) {
        load<GATED>(w, next, columns, stages + i * stage_bytes);
        next.advance(w);
    }
    if constexpr (Type::HAS_GRID) {
        Type::prepare();
        sync_block();
    }
    int at = 0;  // of the stage, among this warp's
    float *window = windows;
    int added = 0;  // chunks before this window
    for (int round = 0; round < n_rounds; round++) {
        char *const stage = stages + at;
        wait_for_first(w.n_stages);
        if (round == shared_round) {
            sync_block();
        } else {
            sync_warp();
        }
        if (now.is_there(w)) {
            const int i = round % ROUNDS * n_warps + warp_id();
            multiply<GATED>(w, places, now, columns_of(w, columns, stage, now.chunk), stage,
                            window + i * OUTPUTS);
            sync_warp();
        }
        now.advance(w);
        load<GATED>(w, next, columns, stage);
        next.advance(w);
        at = at + stage_bytes < w.n_stages * stage_bytes ? at + stage_bytes : 0;
        if (round % ROUNDS != ROUNDS - 1 && round != n_rounds - 1) continue;
        sync_block();
        const int most = ROUNDS * n_warps, n = n_chunks - added < most ? n_chunks - added : most;
        if (threadIdx.x < OUTPUTS) adder.add(window, n);
        added += n;
        window = window == windows ? windows + most * OUTPUTS : windows;
    }
}

MERGING_KERNEL(mul_mat_few, MAX_THREADS, 1) { mul_mat<false>(p); }
KERNEL(gate_up_few, MAX_THREADS, 1) { mul_mat<true>(p); }
