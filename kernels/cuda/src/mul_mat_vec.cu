// Products of quantized weights with up to 8 columns, a tile of 16 rows for each block: for more
// columns, in groups, and for the rows that mul_mat_few.cu does not take. Compiled with -DTYPE=Q4_0,
// ... (blocks.cuh), and -DTHREADS and -DSHARED, a block's threads and bytes of shared memory.
//
// A block computes 16 rows. Its warps take chunks of K in turn. A warp copies the chunk's bytes of
// all rows into its own stage of shared memory, 16 bytes at a time whatever the alignment, while it
// multiplies the chunk before (few_columns.cuh). Chunks' sums go through shared memory to one thread
// for each element, which adds them in order (blocks.cuh).
#include "activations.cuh"
#include "few_columns.cuh"

constexpr int STAGES = 2;
constexpr int COLUMNS = ROWS * ROW_SLOT;  // where columns begin in a stage, after its rows
constexpr int STAGE = COLUMNS + N_COLS * COLUMN_SLOT;

constexpr int WARPS = THREADS / WARP;
constexpr int N_SUMS = STAGES * WARPS;  // chunks whose sums are in shared memory
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

// --- copying chunks into stages ---

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
            copy_chunk(stage + row_slot, rows, left, is_aligned);
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

// What a lane multiplies in a stage.
struct Multiplier {
    const Places places;
    int shift[OWN];   // misalignment of rows lane / 4 and lane / 4 + 8 to 16 bytes
    int sums;         // place of its first sum among a chunk's sums
    bool is_aligned;  // all rows are aligned to 4 bytes

    DEVICE explicit Multiplier(const Work &w)
        : places(w.n_columns), is_aligned(w.is_aligned(4)) {
        const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
        for (int i = 0; i < OWN; i++) shift[i] = misalignment(w.row(i == 1, g));
        sums = ROWS * 2 * t + g;
    }

    // Compute the sums of a stage's chunk: the sum of row r and column c goes to to[ROWS * c + r].
    // `left`: blocks from this chunk on.
    DEVICE void multiply(const char *stage, int chunk, int left, float *to) const {
        int at[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            at[i] = (shift[i] + chunk * (Type::BYTES % PIECE)) % PIECE;
        }
        float s[OWN][OWN] = {};
        add_chunk(s, places, stage, stage + COLUMNS, at, left, is_aligned);
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
