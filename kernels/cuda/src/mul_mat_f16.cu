// MUL_MAT and MUL_MAT_ID with float16 or bfloat16 weights (T), on tensor cores: float32 sums of
// products of weights with columns that are rounded to T.
//
// A result is the sum of its chunks of 256 elements of a row: a chunk is 8 times `multiply_32`,
// from 0 on, and chunks are added in ascending order, from 0 on. `Skinny` is for few columns, where
// reading the weights takes the time: warps share the chunks of a few rows. `Tiled` is for many
// columns: tiles of rows and of columns are in shared memory. Both take the same steps, so a column
// has the same bits in any batch.
//
// Compiled with T=F16 or T=BF16. Tested by tests/kernels/test_cuda_floats.py.
#include "device.cuh"
#include "expert_runs.cuh"
#include "floats.cuh"

#ifndef BF16_MMA
#define BF16_MMA HAS_BF16_MMA  // a test may set it to 0
#endif

constexpr int CHUNK = 256;  // elements of a row

// --- tensor cores ---

DEVICE void multiply_16(F16, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    mma_f16(d, a, b);
}

// Two rows times two columns; one element of each, as the bits of a float.
DEVICE void multiply_1(float (&d)[4], u32 x, u32 y, u32 u, u32 v) {
    d[0] = fmaf(as_float(x), as_float(u), d[0]);
    d[1] = fmaf(as_float(x), as_float(v), d[1]);
    d[2] = fmaf(as_float(y), as_float(u), d[2]);
    d[3] = fmaf(as_float(y), as_float(v), d[3]);
}

DEVICE void multiply_16(BF16, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if BF16_MMA
    mma_bf16(d, a, b);
#else
    // A lane has elements of rows lane / 4 and lane / 4 + 8, and of column lane / 4. Its results
    // are of those rows and of columns 2 * (lane % 4) and the next.
    const int row = lane_id() & ~3, column = lane_id() % 4 * 8;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 x = shfl(a[2 * half], row + i), y = shfl(a[2 * half + 1], row + i);
            const u32 u = shfl(b[half], column + i), v = shfl(b[half], column + 4 + i);
            multiply_1(d, x << 16, y << 16, u << 16, v << 16);  // the low one of two elements
            multiply_1(d, x & ~0xffffu, y & ~0xffffu, u & ~0xffffu, v & ~0xffffu);
        }
    }
#endif
}

// 16 rows times 8 columns, 32 elements of each. Lane i has elements 8 * (i % 4) to 8 * (i % 4) + 7
// of row i / 4, of row i / 4 + 8 and of column i / 4: 16 bytes that it loads at once. A step takes
// half of them. They are not 16 adjacent elements; every kernel takes the same ones.
DEVICE void multiply_32(float (&d)[4], const uint4 &low, const uint4 &high, const uint4 &column) {
    const u32 a0[4] = {low.x, high.x, low.y, high.y}, b0[2] = {column.x, column.y};
    multiply_16(T(), d, a0, b0);
    const u32 a1[4] = {low.z, high.z, low.w, high.w}, b1[2] = {column.z, column.w};
    multiply_16(T(), d, a1, b1);
}

// --- a lane's 8 elements ---

DEVICE uint4 zeros() { return make_uint4(0, 0, 0, 0); }

DEVICE u32 pack(u16 low, u16 high) { return low | static_cast<u32>(high) << 16; }

DEVICE uint4 pack(const u16 (&v)[8]) {
    return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}

// Elements k to k + 7 of a row of n_k. WHOLE: all are there, and aligned to 16 bytes.
template <bool WHOLE> DEVICE uint4 load_weights(const char *row, int k, int n_k) {
    if (WHOLE || (k + 8 <= n_k && (reinterpret_cast<u64>(row) & 15) == 0))
        return *reinterpret_cast<const uint4 *>(row + 2 * k);
    u16 v[8];
    load_elements(v, reinterpret_cast<const u16 *>(row), k, n_k);
    return pack(v);
}

// Elements of prepared columns: of type T, with zeros up to a multiple of CHUNK.
struct Packed {
    template <bool WHOLE> static DEVICE uint4 load(const char *column, int k, int) {
        return *reinterpret_cast<const uint4 *>(column + 2 * k);
    }
};

// Elements of float32 columns, rounded to T.
struct Direct {
    template <bool WHOLE> static DEVICE uint4 load(const char *column, int k, int n_k) {
        float x[8];
        if (WHOLE || (k + 8 <= n_k && (reinterpret_cast<u64>(column) & 15) == 0)) {
            const float4 *at = reinterpret_cast<const float4 *>(column + 4 * k);
            const float4 a = at[0], b = at[1];
            x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
            x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        } else {
            load_elements(x, reinterpret_cast<const float *>(column), k, n_k);
        }
        u16 v[8];
        for (int i = 0; i < 8; i++) T::store(&v[i], x[i]);
        return pack(v);
    }
};

// --- few columns ---

// A warp's tile is 16 * M rows times 8 * N columns, DEPTH * 32 elements at a time. Rows and columns
// past the last ones count as zeros and are not stored.
template <int M, int N, int DEPTH, typename Columns> struct Skinny {
    static constexpr int PARTS = 1, SIZE = 16 * M * 8 * N;

    const Params &p;
    const Product &x;
    int first_row, first_column;  // the block's first row and column
    int n_k;
    bool is_aligned;
    // the lane has rows lane / 4 + 8 * i of the warp's tile, and such columns: where the first one
    // is, and how many rows there are from it on (0 or less: none)
    const char *row, *column;
    int n_rows, n_columns;

    DEVICE Skinny(const Params &p, const Share &s) : p(p), x(s.x) {
        const Tensor &a = p.t[1];
        const int split = static_cast<int>(p.param[SPLIT].i);
        const int n_tiles = static_cast<int>(blockDim.x) / WARP / split;
        n_k = static_cast<int>(a.ne[0]);
        first_row = s.row_block * n_tiles * 16 * M, first_column = s.column_block * 8 * N;
        const int i = first_row + warp_id() / split * 16 * M + lane_id() / 4;
        const int j = first_column + lane_id() / 4;
        row = x.weights + i * a.nb[1], n_rows = static_cast<int>(a.ne[1]) - i;
        n_columns = x.n - j, column = n_columns > 0 ? x.column(p, j) : nullptr;
        is_aligned = rows_are_aligned(a) && columns_are_aligned(p);
    }

    DEVICE void chunk(int c, float *to) const {
        float sum[M][N][4] = {};
        const int begin = c * CHUNK, end = begin + CHUNK;
        if (is_aligned && end <= n_k) add<true, DEPTH>(sum, begin, end);
        else add<false, 1>(sum, begin, end < n_k ? end : n_k);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++)
                for (int e = 0; e < 4; e++)
                    to[((i * N + j) * 4 + e) * WARP + lane_id()] = sum[i][j][e];
    }

    template <bool WHOLE, int STEPS>
    DEVICE void add(float (&sum)[M][N][4], int begin, int end) const {
        const i64 row_step = 8 * p.t[1].nb[1], column_step = 8 * p.param[STRIDE].i;
#pragma unroll 1
        for (int k = begin; k < end; k += 32 * STEPS) {
            uint4 a[STEPS][2 * M], b[STEPS][N];
            for (int s = 0; s < STEPS; s++) {
                const int own = k + 32 * s + 8 * (lane_id() % 4);
                for (int i = 0; i < 2 * M; i++)
                    a[s][i] = 8 * i < n_rows ? load_weights<WHOLE>(row + i * row_step, own, n_k)
                                             : zeros();
                for (int i = 0; i < N; i++) {
                    const char *const from = column + i * column_step;
                    b[s][i] = 8 * i < n_columns ? Columns::template load<WHOLE>(from, own, n_k)
                                                : zeros();
                }
            }
            for (int s = 0; s < STEPS; s++)
                for (int i = 0; i < M; i++)
                    for (int j = 0; j < N; j++)
                        multiply_32(sum[i][j], a[s][2 * i], a[s][2 * i + 1], b[s][j]);
        }
    }

    // `i`: index of the result in the order of `chunk`.
    DEVICE void store(int tile, int i, float v) const {
        const int lane = i % WARP, e = i / WARP % 4, j = i / WARP / 4 % N, m = i / WARP / 4 / N;
        const int row = first_row + (tile * M + m) * 16 + lane / 4 + e / 2 * 8;
        const int column = first_column + j * 8 + lane % 4 * 2 + e % 2;
        if (row < p.t[1].ne[1] && column < x.n) x.result(p, column)[row] = v;
    }
};

constexpr int SKINNY_THREADS = 256;

template <int M, int N, int DEPTH, typename Columns> struct MultiplyFew {
    static constexpr int COLUMNS = 8 * N;

    const Params &p;

    DEVICE void operator()(const Share &share) const {
        add_in_order<CHUNK>(p, Skinny<M, N, DEPTH, Columns>(p, share));
    }
};

typedef MultiplyFew<1, 1, 4, Direct> Multiply8;
typedef MultiplyFew<2, 4, 1, Packed> Multiply32;

KERNEL(mul_mat_8, SKINNY_THREADS, 2) { Multiply8{p}(share_of(p)); }

KERNEL(mul_mat_32, SKINNY_THREADS, 2) { Multiply32{p}(share_of(p)); }

KERNEL(mul_mat_id_1, SKINNY_THREADS, 2) { for_one_pair(p, Multiply8{p}); }

KERNEL(mul_mat_id_8, SKINNY_THREADS, 2) { for_each_pair(p, Multiply8{p}); }

// --- many columns ---

// A block's tile is ROWS rows times COLS columns, a warp's is 16 * M rows times 8 * N columns of
// it, 32 elements at a time. Each of the STAGES in shared memory holds 64 bytes of each row, then
// of each column, without gaps. Lanes load them in this order, so there are no bank conflicts.
template <int ROWS, int COLS, int M, int N, int STAGES> struct Tiled {
    static constexpr int COLUMNS = COLS, STEP = 32, WARP_ROWS = ROWS / (16 * M), WARP_COLS = COLS / (8 * N);
    static constexpr int THREADS = WARP_ROWS * WARP_COLS * WARP, AT_ONCE = THREADS / 4;
    static constexpr int A = ROWS / AT_ONCE, B = COLS / AT_ONCE, STAGE = (ROWS + COLS) * 4;

    const Params &p;
    const Product &x;
    int first_row, first_column, n_rows, n_k;
    bool is_aligned;
    uint4 *stages;
    const char *rows[A], *columns[B];  // loaded by this thread

    DEVICE Tiled(const Params &p, const Share &s, uint4 *stages) : p(p), x(s.x), stages(stages) {
        const Tensor &a = p.t[1];
        n_rows = static_cast<int>(a.ne[1]), n_k = static_cast<int>(a.ne[0]);
        first_row = s.row_block * ROWS, first_column = s.column_block * COLS;
        is_aligned = rows_are_aligned(a);
        const int own = static_cast<int>(threadIdx.x) / 4;
        for (int i = 0; i < A; i++) {
            const int row = first_row + own + i * AT_ONCE;
            rows[i] = x.weights + (row < n_rows ? row : n_rows - 1) * a.nb[1];
        }
        for (int i = 0; i < B; i++) {
            const int column = first_column + own + i * AT_ONCE;
            columns[i] = x.column(p, column < x.n ? column : x.n - 1);
        }
    }

    // Begin to load elements k to k + 31 into a stage.
    DEVICE void load(int stage, int k) const {
        uint4 *const to = stages + stage * STAGE + threadIdx.x;
        const int own = k + 8 * static_cast<int>(threadIdx.x % 4);
        for (int i = 0; i < A; i++) {
            if (is_aligned && k + STEP <= n_k) copy_async(to + i * THREADS, rows[i] + 2 * own);
            else to[i * THREADS] = load_weights<false>(rows[i], own, n_k);
        }
        for (int i = 0; i < B; i++) copy_async(to + ROWS * 4 + i * THREADS, columns[i] + 2 * own);
    }

    DEVICE void multiply(int stage, float (&sum)[M][N][4]) const {
        const uint4 *const at = stages + stage * STAGE + lane_id();
        const uint4 *const a = at + warp_id() % WARP_ROWS * M * 64;
        const uint4 *const b = at + ROWS * 4 + warp_id() / WARP_ROWS * N * 32;
        uint4 column[N];
        for (int j = 0; j < N; j++) column[j] = b[j * 32];
#pragma unroll
        for (int i = 0; i < M; i++) {
            const uint4 low = a[i * 64], high = a[i * 64 + 32];
#pragma unroll
            for (int j = 0; j < N; j++) multiply_32(sum[i][j], low, high, column[j]);
        }
    }

    DEVICE void run() const {
        constexpr int STEPS_PER_CHUNK = CHUNK / STEP;
        const int n_steps = (n_k + STEP - 1) / STEP;
        float total[M][N][4] = {}, sum[M][N][4] = {};
        for (int s = 0; s < STAGES - 1; s++) {
            if (s < n_steps) load(s, s * STEP);
            copy_async_commit();
        }
        int stage = 0;
        for (int s = 0; s < n_steps; s++) {
            copy_async_wait<STAGES - 2>();
            sync_block();
            const int next = s + STAGES - 1, to = stage ? stage - 1 : STAGES - 1;
            if (next < n_steps) load(to, next * STEP);
            copy_async_commit();
            multiply(stage, sum);
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            if ((s + 1) % STEPS_PER_CHUNK == 0 || s + 1 == n_steps) add(total, sum);
        }
        store(total);
    }

    DEVICE static void add(float (&total)[M][N][4], float (&sum)[M][N][4]) {
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++)
                for (int e = 0; e < 4; e++) total[i][j][e] += sum[i][j][e], sum[i][j][e] = 0.0f;
    }

    DEVICE void store(const float (&total)[M][N][4]) const {
        const int row = first_row + warp_id() % WARP_ROWS * 16 * M + lane_id() / 4;
        const int column = first_column + warp_id() / WARP_ROWS * 8 * N + lane_id() % 4 * 2;
        for (int j = 0; j < 2 * N; j++) {
            const int c = column + j / 2 * 8 + j % 2;
            if (c >= x.n) return;
            float *const to = x.result(p, c);
            for (int i = 0; i < 2 * M; i++)
                if (row + i * 8 < n_rows) to[row + i * 8] = total[i / 2][j / 2][i % 2 * 2 + j % 2];
        }
    }
};

template <typename Tile> DEVICE void tiled(const Params &p) {
    DYNAMIC_SHARED(uint4, stages);
    const Share share = share_of(p);
    Tile(p, share, stages).run();
}

// Grid: (run of an expert's pairs, row block). The columns of a tile are those of a run.
template <typename Tile> DEVICE void tiled_pairs(const Params &p) {
    DYNAMIC_SHARED(uint4, stages);
    const u32 row_blocks = static_cast<u32>(p.param[ROW_BLOCKS].i);
    const Tensor &a = p.t[1];
    ExpertRun run;
    const int tile = static_cast<int>(blockIdx.x / row_blocks);
    if (!find_run<Tile::COLUMNS>(p, static_cast<int>(a.ne[2]), tile, run)) return;
    const Share share = {{a.data + run.expert * a.nb[2], 0, run.n, true, run.pairs},
                         static_cast<int>(blockIdx.x % row_blocks), 0};
    Tile(p, share, stages).run();
}

typedef Tiled<64, 32, 1, 4, 4> Tile32;
typedef Tiled<64, 64, 2, 4, 4> Tile64;
typedef Tiled<128, 128, 4, 4, 3> Tile128;

KERNEL(mul_mat_tiles_64, Tile64::THREADS, 3) { tiled<Tile64>(p); }

KERNEL(mul_mat_tiles_128, Tile128::THREADS, 1) { tiled<Tile128>(p); }

KERNEL(mul_mat_id_tiles_32, Tile32::THREADS, 4) { tiled_pairs<Tile32>(p); }

KERNEL(mul_mat_id_tiles_64, Tile64::THREADS, 3) { tiled_pairs<Tile64>(p); }

KERNEL(mul_mat_id_tiles_128, Tile128::THREADS, 1) { tiled_pairs<Tile128>(p); }

// --- columns ---

KERNEL(pack_columns, 128, 8) { pack_row<T>(p); }
