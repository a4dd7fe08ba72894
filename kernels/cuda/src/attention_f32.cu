// FLASH_ATTN_EXT in float32, for types, head sizes and page sizes that attention.cu does not
// support. It has the same partitions of positions, and sums them in the same order.
//
// A block has one query. A thread has a position of a partition for the scores, then an element of
// the values. Partitions may be divided among blocks as in attention.cu.
// Tested by tests/kernels/test_cuda_attention.py.
#include "attention.cuh"

constexpr int TYPE_K = 7, TYPE_V = 8;  // parameters: GGMLType of the pools
constexpr int N_GROUPS = 4;            // groups of threads, each with a quarter of the positions
constexpr int WIDTH = PARTITION / N_GROUPS;  // elements of values at a time

struct Q8_0 {
    // blocks of a float16 factor and 32 int8 (ggml-common.h)
    static DEVICE float load(const char *row, int i) {
        const char *const block = row + i / 32 * 34;
        const float d = f16_to_f32(*reinterpret_cast<const u16 *>(block));
        return d * static_cast<float>(*reinterpret_cast<const i8 *>(block + 2 + i % 32));
    }
};

template <typename T> struct Plain {
    static DEVICE float load(const char *row, int i) {
        return T::load(reinterpret_cast<const typename T::stored *>(row) + i);
    }
};

// --- rows of a type ---

template <typename T> DEVICE float dot_of(const float *q, int n, const char *row, int first) {
    float s = 0.0f;
#pragma unroll 4
    for (int i = 0; i < n; i++) s = fmaf(q[i], T::load(row, first + i), s);
    return s;
}

DEVICE float dot(int type, const float *q, int n, const char *row, int first) {
    switch (type) {
    case 0: return dot_of<Plain<F32>>(q, n, row, first);
    case 1: return dot_of<Plain<F16>>(q, n, row, first);
    case 30: return dot_of<Plain<BF16>>(q, n, row, first);
    default: return dot_of<Q8_0>(q, n, row, first);
    }
}

template <typename T>
DEVICE float weighted_of(const Tensor &v, const float *w, const int *cells, int n, int i) {
    float s = 0.0f;
#pragma unroll 4
    for (int j = 0; j < n; j++) s = fmaf(w[j], T::load(v.data + cells[j] * v.nb[1], i), s);
    return s;
}

// The weighted sum of the i-th elements of `n` rows of values.
DEVICE float weighted(int type, const Tensor &v, const float *w, const int *cells, int n, int i) {
    switch (type) {
    case 0: return weighted_of<Plain<F32>>(v, w, cells, n, i);
    case 1: return weighted_of<Plain<F16>>(v, w, cells, n, i);
    case 30: return weighted_of<Plain<BF16>>(v, w, cells, n, i);
    default: return weighted_of<Q8_0>(v, w, cells, n, i);
    }
}

// --- a block ---

// Sum or maximum of all threads' values, for every thread.
template <bool IS_SUM> DEVICE float of_block(float v) {
    __shared__ float warps[PARTITION / WARP];
    v = IS_SUM ? warp_sum(v) : warp_max(v);
    if (lane_id() == 0) warps[warp_id()] = v;
    sync_block();
    v = warps[0];
    for (int i = 1; i < PARTITION / WARP; i++) v = IS_SUM ? v + warps[i] : fmaxf(v, warps[i]);
    sync_block();
    return v;
}

// Element `i` of the values' sum, in the first group's threads. `i` is a multiple of WIDTH plus the
// thread's index in its group. Positions before the `begin`-th and from the `end`-th on are not
// read.
DEVICE float values_of_block(const Params &p, const float *w, const int *cells, int begin, int end,
                             int i, int first) {
    __shared__ float parts[PARTITION];
    const int group = static_cast<int>(threadIdx.x) / WIDTH * WIDTH;
    const int from = begin > group ? begin : group, to = end < group + WIDTH ? end : group + WIDTH;
    const int type = static_cast<int>(p.param[TYPE_V].i);
    float s = 0.0f;
    if (i < p.t[0].ne[0])
        s = weighted(type, p.t[V], w + from, cells + from, to - from, first + i);
    parts[threadIdx.x] = s;
    sync_block();
    for (int g = 1; g < N_GROUPS; g++) s += parts[g * WIDTH + threadIdx.x % WIDTH];
    sync_block();
    return s;
}

struct Query {
    int token, head, kv, seq, pos;
    Span span;
    float slope;
    const float *q;  // in shared memory
};

// The score and the cell of the thread's position; minus infinity if the query does not see it.
DEVICE float score(const Params &p, const Query &query, int position, int &cell) {
    cell = 0;
    if (position < query.span.begin || position >= query.span.end) return as_float(0xff800000u);
    const u32 page_size = static_cast<u32>(p.param[PAGE_SIZE].i);
    const u32 i = static_cast<u32>(position) / page_size;
    const int page = page_of(p, query.seq, i);
    if (!is_page(p, page)) {
        fail(p, page, p.param[N_PAGES].i);
        return as_float(0xff800000u);
    }
    cell = static_cast<int>(page * page_size + static_cast<u32>(position) - i * page_size);
    const int n = static_cast<int>(p.t[Q].ne[0]), type = static_cast<int>(p.param[TYPE_K].i);
    const char *const row = p.t[K].data + cell * p.t[K].nb[1];
    const float product = dot(type, query.q, n, row, query.kv * n);
    return Scores(p).of(product, query.slope, position - query.pos);
}

// Compute the sums of the span's index-th partition. Add them to `sums`, or write them to a record
// if `record` >= 0.
DEVICE void attend(const Params &p, const Query &query, int index, float &largest, float &total,
                   float *sums, int record) {
    __shared__ float w[PARTITION];
    __shared__ int cells[PARTITION];
    const int begin = (query.span.begin / PARTITION + index) * PARTITION;
    const int n_before = query.span.begin > begin ? query.span.begin - begin : 0;
    const int left = query.span.end - begin, n = left < PARTITION ? left : PARTITION;
    const int n_values = static_cast<int>(p.t[0].ne[0]);
    const float s = score(p, query, begin + threadIdx.x, cells[threadIdx.x]);
    const float largest_here = fmaxf(LOWEST, of_block<false>(s)), weight = exp2f(s - largest_here);
    w[threadIdx.x] = weight;
    const float total_here = of_block<true>(weight);  // also waits for all weights
    const Combination with(largest, largest_here);
    total = with.add(total, total_here);
    const Record to(p, record < 0 ? 0 : record, query.head);
    if (record >= 0 && threadIdx.x == 0) to.sums[0] = largest_here, to.sums[1] = total_here;
    for (int i = threadIdx.x % WIDTH; i - static_cast<int>(threadIdx.x) % WIDTH < n_values;
         i += WIDTH) {
        const float value = values_of_block(p, w, cells, n_before, n, i, query.kv * n_values);
        if (threadIdx.x >= WIDTH || i >= n_values) continue;
        if (record >= 0) to.values[i] = value;
        else sums[i] = with.add(index > 0 ? sums[i] : 0.0f, value);
    }
}

// Grid: (token, head, every n-th partition). Shared memory: the query, then its values' sums.
KERNEL(attention_f32, PARTITION, 1) {
    DYNAMIC_SHARED(float, q);
    const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
    int before = -1;
    if (gridDim.z > 1) {
        const PartitionCount count(p, token);
        if (count.has_room(p)) before = count.before;
        else if (blockIdx.z > 0) return;
    }
    if (!check_token(p, token)) return;
    const int head_dim = static_cast<int>(p.t[Q].ne[0]), n_values = static_cast<int>(p.t[0].ne[0]);
    const char *const from = at(p.t[Q], 0, head, token, 0);
    for (int i = threadIdx.x; i < head_dim; i += PARTITION)
        q[i] = reinterpret_cast<const float *>(from)[i];
    sync_block();
    const int n_shared = static_cast<int>(p.t[Q].ne[1] / (p.t[K].ne[0] / head_dim));
    const float slope = p.param[MAX_BIAS].f > 0 ? slope_of(p, head) : 0.0f;
    const Query query = {token, head, head / n_shared, int_at(p.t[SEQ], token),
                         int_at(p.t[POS], token), span_of(p, token), slope, q};
    float largest = LOWEST, total = 0.0f, *const sums = q + head_dim;
    const int step = before < 0 ? 1 : static_cast<int>(gridDim.z);
    for (int i = before < 0 ? 0 : blockIdx.z; i < query.span.n_partitions(); i += step)
        attend(p, query, i, largest, total, sums, before < 0 ? -1 : before + i);
    if (before >= 0 && (blockIdx.z > 0 || !query.span.is_empty())) return;
    const float inverse = inverse_of(total, largest, sink_of(p, head));
    float *const out = reinterpret_cast<float *>(at(p.t[0], 0, head, token, 0));
    for (int i = threadIdx.x; i < n_values && threadIdx.x < WIDTH; i += WIDTH)
        out[i] = query.span.is_empty() ? 0.0f : mean_of(sums[i], inverse);
}
