// MUL_MAT and MUL_MAT_ID with float32 weights, in float32.
//
// A result is the sum of its chunks of 512 elements of a row, in ascending order, from 0 on. A
// chunk has 8 parts: part j is the sum by fmaf, from 0 on, of elements 64 * i + 8 * j to
// 64 * i + 8 * j + 7 for i = 0, 1, ..., 7. Parts are added one by one, in ascending order. `Vector`
// is for few columns: a lane computes a part, and 8 lanes load 256 bytes of a row. `Tiled` is for
// many columns: it takes a tile's elements in the same order. So a column has the same bits in any
// batch.
//
// Tested by tests/kernels/test_cuda_floats.py.
#include "device.cuh"
#include "floats.cuh"

constexpr int CHUNK = 512, PIECE = 8, N_PARTS = 8, STRIP = PIECE * N_PARTS;  // elements of a row

// Elements k to k + 3 of a row of n_k. WHOLE: all are there, and aligned to 16 bytes.
template <bool WHOLE> DEVICE float4 load_4(const char *row, int k, int n_k) {
    if (WHOLE || (k + 4 <= n_k && (reinterpret_cast<u64>(row) & 15) == 0))
        return *reinterpret_cast<const float4 *>(row + 4 * k);
    float v[4];
    load_elements(v, reinterpret_cast<const float *>(row), k, n_k);
    return make_float4(v[0], v[1], v[2], v[3]);
}

DEVICE float add_products(const float4 &a, const float4 &b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// --- few columns ---

// A warp's tile is 4 rows times N columns. Rows and columns past the last ones are not stored.
template <int N> struct Vector {
    static constexpr int ROWS = WARP / N_PARTS, PARTS = N_PARTS, SIZE = ROWS * N;
    static constexpr int DEPTH = N > 1 ? 1 : 4;  // strips whose weights are loaded at once

    const Params &p;
    const Product &x;
    int first_row, first_column;  // the block's first row and column
    int n_k;
    bool is_aligned;
    const char *row;  // the lane's; null past the last one
    const char *columns[N];

    DEVICE Vector(const Params &p, const Share &s) : p(p), x(s.x) {
        const Tensor &a = p.t[1];
        const int split = static_cast<int>(p.param[SPLIT].i);
        const int n_tiles = static_cast<int>(blockDim.x) / WARP / split;
        n_k = static_cast<int>(a.ne[0]);
        first_row = s.row_block * n_tiles * ROWS, first_column = s.column_block * N;
        const int r = first_row + warp_id() / split * ROWS + lane_id() / N_PARTS;
        row = r < a.ne[1] ? x.weights + r * a.nb[1] : nullptr;
        for (int i = 0; i < N; i++) {
            const int c = first_column + i;
            columns[i] = x.column(p, c < x.n ? c : x.n - 1);
        }
        is_aligned = rows_are_aligned(a) && columns_are_aligned(p);
    }

    // Part j of row r and column c is float (j * ROWS + r) * N + c.
    DEVICE void chunk(int c, float *to) const {
        float sum[N] = {};
        const int begin = c * CHUNK, end = begin + CHUNK;
        if (is_aligned && end <= n_k) add<true, DEPTH>(sum, begin, end);
        else add<false, 1>(sum, begin, end < n_k ? end : n_k);
        const int lane = lane_id() % N_PARTS * ROWS + lane_id() / N_PARTS;
        for (int i = 0; i < N; i++) to[lane * N + i] = sum[i];
    }

    template <bool WHOLE, int STEPS> DEVICE void add(float (&sum)[N], int begin, int end) const {
        if (!row) return;
#pragma unroll 1
        for (int k = begin + lane_id() % N_PARTS * PIECE; k < end; k += STEPS * STRIP) {
            float4 a[STEPS][2];
            for (int s = 0; s < STEPS; s++)
                for (int i = 0; i < 2; i++)
                    a[s][i] = load_4<WHOLE>(row, k + s * STRIP + 4 * i, n_k);
            for (int s = 0; s < STEPS; s++)
                for (int c = 0; c < N; c++)
                    for (int i = 0; i < 2; i++) {
                        const int own = k + s * STRIP + 4 * i;
                        sum[c] = add_products(a[s][i], load_4<WHOLE>(columns[c], own, n_k), sum[c]);
                    }
        }
    }

    DEVICE void store(int tile, int i, float v) const {
        const int r = first_row + tile * ROWS + i / N, c = first_column + i % N;
        if (r < p.t[1].ne[1] && c < x.n) x.result(p, c)[r] = v;
    }
};

constexpr int VECTOR_THREADS = 256;

template <int N> struct MultiplyFew {
    static constexpr int COLUMNS = N;

    const Params &p;

    DEVICE void operator()(const Share &share) const {
        add_in_order<CHUNK>(p, Vector<N>(p, share));
    }
};

KERNEL(mul_mat_1, VECTOR_THREADS, 2) { MultiplyFew<1>{p}(share_of(p)); }

KERNEL(mul_mat_8, VECTOR_THREADS, 2) { MultiplyFew<8>{p}(share_of(p)); }

KERNEL(mul_mat_id_1, VECTOR_THREADS, 2) { for_one_pair(p, MultiplyFew<1>{p}); }

KERNEL(mul_mat_id_8, VECTOR_THREADS, 1) { for_each_pair(p, MultiplyFew<8>{p}); }

// --- many columns ---

// Place in a row of a step of 16 elements: two pieces of a part.
struct Place {
    int n_k, chunk, part, pair;

    DEVICE int n_pairs() const {  // in a part of this chunk
        const int left = n_k - chunk;
        return left < CHUNK ? (left + 2 * STRIP - 1) / (2 * STRIP) : CHUNK / (2 * STRIP);
    }
    DEVICE bool is_there() const { return chunk < n_k; }
    DEVICE int k() const { return chunk + pair * 2 * STRIP + part * PIECE; }
    DEVICE bool ends_part() const { return pair + 1 == n_pairs(); }
    DEVICE void next() {
        if (++pair < n_pairs()) return;
        pair = 0;
        if (++part < N_PARTS) return;
        part = 0;
        chunk += CHUNK;
    }
};

// A block's tile is 64 rows times 64 columns. A thread has 8 times 4 of them: rows thread % 8 + 8 *
// i and columns thread / 8 + 16 * j. Each of the STAGES in shared memory holds 16 elements of the
// rows, then of the columns: 4 lists of 4 elements of each. Lists are padded by 4 places, so that
// threads that write to two lists have no bank conflict.
struct Tiled {
    static constexpr int THREADS = 128, SIDE = 64, ROWS = 8, COLS = 4, STAGES = 4;
    static constexpr int LISTS = 4, LIST = SIDE + 4, STAGE = 2 * LISTS * LIST;

    const Params &p;
    const Product &x;
    int first_row, first_column, n_k;
    bool is_aligned;
    float4 *stages;
    const char *row, *column;  // loaded by this thread, from its half of a piece on

    DEVICE Tiled(const Params &p, const Share &s, float4 *stages) : p(p), x(s.x), stages(stages) {
        const Tensor &a = p.t[1];
        const int own = static_cast<int>(threadIdx.x) / 2, last = static_cast<int>(a.ne[1]) - 1;
        n_k = static_cast<int>(a.ne[0]);
        first_row = s.row_block * SIDE, first_column = s.column_block * SIDE;
        is_aligned = rows_are_aligned(a) && columns_are_aligned(p);
        row = x.weights + (first_row + own < last ? first_row + own : last) * a.nb[1];
        const int c = first_column + own < x.n ? first_column + own : x.n - 1;
        column = x.column(p, c);
    }

    DEVICE void load(int stage, int begin) const {
        const int half = static_cast<int>(threadIdx.x % 2);
        float4 *to = stages + stage * STAGE + half * LIST + threadIdx.x / 2;
        for (int i = 0; i < 2; i++) {
            const int k = begin + i * STRIP + 4 * half;
            float4 *const a = to + 2 * i * LIST, *const b = a + LISTS * LIST;
            if (is_aligned && k + 4 <= n_k) {
                copy_async(a, row + 4 * k);
                copy_async(b, column + 4 * k);
            } else {
                *a = load_4<false>(row, k, n_k);
                *b = load_4<false>(column, k, n_k);
            }
        }
    }

    DEVICE void multiply(int stage, float (&sum)[ROWS][COLS]) const {
        const float4 *const a = stages + stage * STAGE + threadIdx.x % 8;
        const float4 *const b = stages + stage * STAGE + LISTS * LIST + threadIdx.x / 8;
#pragma unroll 2
        for (int l = 0; l < LISTS; l++) {
            float4 column[COLS];
            for (int j = 0; j < COLS; j++) column[j] = b[l * LIST + 16 * j];
            for (int i = 0; i < ROWS; i++) {
                const float4 row = a[l * LIST + 8 * i];
                for (int j = 0; j < COLS; j++) sum[i][j] = add_products(row, column[j], sum[i][j]);
            }
        }
    }

    DEVICE void run() const {
        float total[ROWS][COLS] = {}, sum[ROWS][COLS] = {};
        Place ahead = {n_k, 0, 0, 0};
        for (int s = 0; s < STAGES - 1; s++) begin_load(s, ahead);
        int stage = 0;
        for (Place now = {n_k, 0, 0, 0}; now.is_there(); now.next()) {
            copy_async_wait<STAGES - 2>();
            sync_block();
            begin_load(stage ? stage - 1 : STAGES - 1, ahead);
            multiply(stage, sum);
            stage = stage + 1 < STAGES ? stage + 1 : 0;
            if (now.ends_part()) add(total, sum);
        }
        store(total);
    }

    DEVICE void begin_load(int stage, Place &ahead) const {
        if (ahead.is_there()) load(stage, ahead.k()), ahead.next();
        copy_async_commit();
    }

    DEVICE static void add(float (&total)[ROWS][COLS], float (&sum)[ROWS][COLS]) {
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) total[i][j] += sum[i][j], sum[i][j] = 0.0f;
    }

    DEVICE void store(const float (&total)[ROWS][COLS]) const {
        const int r = first_row + threadIdx.x % 8, c = first_column + threadIdx.x / 8;
        for (int j = 0; j < COLS; j++) {
            if (c + 16 * j >= x.n) return;
            float *const to = x.result(p, c + 16 * j);
            for (int i = 0; i < ROWS; i++)
                if (r + 8 * i < p.t[1].ne[1]) to[r + 8 * i] = total[i][j];
        }
    }
};

DEVICE void tiled(const Params &p) {
    DYNAMIC_SHARED(float4, stages);
    const Share share = share_of(p);
    Tiled(p, share, stages).run();
}

KERNEL(mul_mat_tiles_64, Tiled::THREADS, 3) { tiled(p); }

// --- columns ---

KERNEL(pack_columns, 128, 8) { pack_row<F32>(p); }
