// Shared by products with float weights: the columns of each matrix, loads from rows of any
// alignment, and the order of summing chunks. How a chunk is computed is up to the kernels.
#pragma once
#include "device.cuh"

// parameters of all products, set by kernels/cuda/ops/floats.py
constexpr int COLUMNS = 0;        // consecutive columns that share a matrix of weights
constexpr int REPEAT_3 = 1;       // how often the weights repeat along dimension 3
constexpr int STRIDE = 2;         // bytes between prepared columns; 0: columns are used in place
constexpr int COLUMN_BLOCKS = 3;  // blocks that share the columns of a matrix
constexpr int ROW_BLOCKS = 4;     // blocks that share the rows of a matrix
constexpr int SPLIT = 5;          // warps that share a row: see add_in_order
constexpr int ROUND = 6;          // chunks computed before their sums are added

// A matrix of weights times `n` columns. Result j is row first + j of the node, or row list[j] if
// there is a list; rows are counted over dimensions 1, 2, 3.
struct Product {
    const char *weights;
    i64 first;
    int n;
    bool is_expert;  // a row is a pair of MUL_MAT_ID: (token, its i-th expert)
    const int *list;

    DEVICE i64 row(int j) const { return list ? list[j] : first + j; }

    DEVICE const char *column(const Params &p, int j) const {
        i64 c = row(j);
        if (is_expert) {
            const u32 pair = static_cast<u32>(c), n_used = static_cast<u32>(p.t[0].ne[1]);
            const u32 n = static_cast<u32>(p.t[2].ne[1]);
            c = static_cast<i64>(pair / n_used) * n + pair % n_used % n;
        }
        const i64 stride = p.param[STRIDE].i;
        return stride ? p.prepared[0] + c * stride : row_of(p.t[2], c);
    }

    DEVICE float *result(const Params &p, int j) const {
        return reinterpret_cast<float *>(row_of(p.t[0], row(j)));
    }
};

// A block's share of a product. Blocks that share a matrix are neighbors, those that share its rows
// are the closest: the second one finds the rows in the cache.
struct Share {
    Product x;
    int row_block, column_block;
};

DEVICE Share share_of(const Params &p) {
    const Tensor &a = p.t[1];
    const u32 column_blocks = static_cast<u32>(p.param[COLUMN_BLOCKS].i);
    const u32 row_blocks = static_cast<u32>(p.param[ROW_BLOCKS].i);
    const u32 rest = blockIdx.x / column_blocks, group = rest / row_blocks;
    const i64 i2 = group % a.ne[2], i3 = group / a.ne[2] / p.param[REPEAT_3].i;
    const i64 n = p.param[COLUMNS].i;
    return {{at(a, 0, 0, i2, i3), group * n, static_cast<int>(n), false, nullptr},
            static_cast<int>(rest % row_blocks), static_cast<int>(blockIdx.x % column_blocks)};
}

// --- experts ---

// The expert of a pair. An invalid expert is reported; the result is then -1.
DEVICE int expert_of(const Params &p, u32 pair) {
    const Tensor &ids = p.t[3];
    const u32 n_used = static_cast<u32>(ids.ne[0]);
    const char *id = ids.data + pair % n_used * ids.nb[0] + pair / n_used * ids.nb[1];
    const int expert = *reinterpret_cast<const int *>(id);
    if (expert >= 0 && expert < p.t[1].ne[2]) return expert;
    fail(p, expert, p.t[1].ne[2]);
    return -1;
}

// Grid: (pair, row block). Call `multiply(share)` for the block's pair.
template <typename Multiply> DEVICE void for_one_pair(const Params &p, const Multiply &multiply) {
    const u32 row_blocks = static_cast<u32>(p.param[ROW_BLOCKS].i), pair = blockIdx.x / row_blocks;
    const int expert = expert_of(p, pair);
    if (expert < 0) return;
    const char *weights = p.t[1].data + expert * p.t[1].nb[2];
    multiply({{weights, pair, 1, true, nullptr}, static_cast<int>(blockIdx.x % row_blocks), 0});
}

// Grid: (expert, row block). Call `multiply(share)` for the expert's pairs, at most COLUMNS at a
// time.
template <typename Multiply> DEVICE void for_each_pair(const Params &p, const Multiply &multiply) {
    constexpr int SOME = 2048, N = Multiply::COLUMNS;  // pairs are searched SOME at a time
    __shared__ int list[SOME], n_listed;
    const int row_blocks = static_cast<int>(p.param[ROW_BLOCKS].i);
    const int expert = static_cast<int>(blockIdx.x) / row_blocks;
    const char *weights = p.t[1].data + expert * p.t[1].nb[2];
    const u32 n_pairs = static_cast<u32>(p.t[3].ne[0] * p.t[3].ne[1]);
    for (u32 begin = 0; begin < n_pairs; begin += SOME) {
        if (threadIdx.x == 0) n_listed = 0;
        sync_block();
        const u32 end = n_pairs - begin < SOME ? n_pairs : begin + SOME;
        for (u32 pair = begin + threadIdx.x; pair < end; pair += blockDim.x)
            if (expert_of(p, pair) == expert)
                list[atomic_add(&n_listed, 1)] = static_cast<int>(pair);
        sync_block();
        for (int i = 0, left = n_listed; left > 0; i += N, left -= N)
            multiply({{weights, 0, left < N ? left : N, true, list + i},
                      static_cast<int>(blockIdx.x) % row_blocks, 0});
        sync_block();
    }
}

// --- rows ---

// True if all rows begin at multiples of 16 bytes.
DEVICE bool rows_are_aligned(const Tensor &t) {
    return ((reinterpret_cast<u64>(t.data) | t.nb[1] | t.nb[2] | t.nb[3]) & 15) == 0;
}
DEVICE bool columns_are_aligned(const Params &p) {
    return p.param[STRIDE].i != 0 || rows_are_aligned(p.t[2]);
}

// Load elements k .. k + N - 1 of a row of `n_k`, zeros past its end. The row may be unaligned.
template <typename T, int N> DEVICE void load_elements(T (&to)[N], const T *row, int k, int n_k) {
    for (int i = 0; i < N; i++) to[i] = k + i < n_k ? row[k + i] : T(0);
}

// Multiply rows of weights with columns; warps share the chunks of a row.
//
// A Work multiplies a tile of rows with its columns: `chunk(c, to)` writes SIZE sums for each of
// the PARTS of chunk c, `store(i, v)` takes the i-th result. All parts are added in ascending
// order, from 0 on, whichever warp computed them. So the results have the same bits as those of a
// kernel that walks its rows from beginning to end.
//
// SPLIT warps share the chunks of a tile. Shared memory: PARTS * SIZE floats for ROUND chunks of
// each of the block's tiles; SIZE more for each tile if there are more chunks than ROUND.
template <int CHUNK, typename Work> DEVICE void add_in_order(const Params &p, const Work &work) {
    constexpr int SIZE = Work::SIZE, CHUNK_SIZE = Work::PARTS * SIZE;
    DYNAMIC_SHARED(float, sums);
    // an empty row has one empty chunk, whose sum is 0
    const int n_k = static_cast<int>(p.t[1].ne[0]);
    const int n_chunks = n_k ? (n_k + CHUNK - 1) / CHUNK : 1;
    const int split = static_cast<int>(p.param[SPLIT].i);
    const int round = static_cast<int>(p.param[ROUND].i);
    const int n_tiles = static_cast<int>(blockDim.x) / WARP / split;
    float *const own = sums + warp_id() / split * round * CHUNK_SIZE;
    float *const totals = sums + n_tiles * round * CHUNK_SIZE;
    for (int begin = 0; begin < n_chunks; begin += round) {
        const int left = n_chunks - begin, n = left < round ? left : round;
        for (int c = warp_id() % split; c < n; c += split)
            work.chunk(begin + c, own + c * CHUNK_SIZE);
        sync_block();
        for (int i = threadIdx.x; i < n_tiles * SIZE; i += blockDim.x) {
            const float *part = sums + i / SIZE * round * CHUNK_SIZE + i % SIZE;
            float total = begin ? totals[i] : 0.0f;
            for (int c = 0; c < n * Work::PARTS; c++) total += part[c * SIZE];
            if (begin + n < n_chunks) totals[i] = total;
            else work.store(i / SIZE, i % SIZE, total);
        }
        sync_block();
    }
}

// --- columns of other types and layouts ---

constexpr int PACKED_STRIDE = 0, PACKED_TYPE = 1;  // parameters; GGMLType as in graph/types.py

DEVICE float load_float(i64 type, const char *at) {
    if (type == 0) return *reinterpret_cast<const float *>(at);
    const u16 bits = *reinterpret_cast<const u16 *>(at);
    return type == 1 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

// Pack columns: rows of T without gaps, padded with zeros. Grid: (row, part of it). A thread packs
// 8 elements.
template <typename T> DEVICE void pack_row(const Params &p) {
    typedef typename T::stored stored;
    constexpr int N_WORDS = sizeof(stored) / 2;
    const Tensor &b = p.t[2];
    const i64 r = blockIdx.x, stride = p.param[PACKED_STRIDE].i, type = p.param[PACKED_TYPE].i;
    const i64 k = 8 * static_cast<i64>(blockIdx.y * blockDim.x + threadIdx.x);
    if (k * static_cast<i64>(sizeof(stored)) >= stride) return;
    const char *row = row_of(b, r);
    union {
        stored packed[8];
        uint4 words[N_WORDS];
    } to;
    for (int i = 0; i < 8; i++)
        T::store(&to.packed[i], k + i < b.ne[0] ? load_float(type, row + (k + i) * b.nb[0]) : 0.0f);
    uint4 *out = reinterpret_cast<uint4 *>(p.prepared[0] + r * stride + k * sizeof(stored));
    for (int i = 0; i < N_WORDS; i++) out[i] = to.words[i];
}
