// FLASH_ATTN_EXT in float32, for types, head sizes and page sizes that attention.cu does not
// support. It has the same partitions of positions, and sums them in the same order.
//
// A block has the queries of HEADS heads of a token, which share keys and values. A thread has a
// position of a partition for the scores, then an element of the values. Positions may be divided
// among blocks as in attention.cu. Compiled with HEADS.
// Tested by tests/kernels/test_cuda_attention.py.
#include "attention.cuh"
#include "dequantize.cuh"

constexpr int TYPE_K = 8, TYPE_V = 9;  // parameters: GGMLType of the pools
constexpr int N_GROUPS = 4;            // groups of threads, each with a quarter of the positions
constexpr int WIDTH = PARTITION / N_GROUPS;  // elements of values at a time

template <typename T> struct Packed {  // blocks of dequantize.cuh
    static DEVICE float load(const char *row, int i) {
        return T::load(reinterpret_cast<const u8 *>(row + i / T::SIZE * T::BYTES), i % T::SIZE);
    }
};

template <typename T> struct Plain {
    static DEVICE float load(const char *row, int i) {
        return T::load(reinterpret_cast<const typename T::stored *>(row) + i);
    }
};

// A number for each head of a block.
struct OfHeads {
    float of[HEADS];

    DEVICE explicit OfHeads(float value) {
        for (int h = 0; h < HEADS; h++) of[h] = value;
    }
};

// --- rows of a type ---

constexpr int STRIP = 16;  // elements of keys in shared memory at a time
typedef float Strip[PARTITION][STRIP + 1];  // rows begin in different banks

// The products of each head's query with the key of the thread's position; heads are `n` elements
// apart. Keys begin with element `first` of rows `cells`. Neighboring threads read neighboring
// elements, and pass them on through shared memory. All threads of the block call it together.
template <typename T>
DEVICE OfHeads dot_of(const float *q, int n, const Tensor &k, const int *cells, int first,
                      Strip &strip) {
    OfHeads s(0.0f);
    const int own = static_cast<int>(threadIdx.x) % STRIP;
    for (int begin = 0; begin < n; begin += STRIP) {
        const int end = begin + STRIP < n ? begin + STRIP : n;
        sync_block();  // for cells, and for the strip before
#pragma unroll 4
        for (int row = threadIdx.x / STRIP; row < PARTITION; row += PARTITION / STRIP) {
            const int cell = cells[row];
            if (cell < 0 || begin + own >= n) continue;
            strip[row][own] = T::load(k.data + cell * k.nb[1], first + begin + own);
        }
        sync_block();
        if (cells[threadIdx.x] < 0) continue;
#pragma unroll 4
        for (int i = begin; i < end; i++) {
            const float v = strip[threadIdx.x][i - begin];
#pragma unroll
            for (int h = 0; h < HEADS; h++) s.of[h] = fmaf(q[h * n + i], v, s.of[h]);
        }
    }
    return s;
}

DEVICE OfHeads dot(int type, const float *q, int n, const Tensor &k, const int *cells, int first) {
    __shared__ Strip strip;
    switch (type) {
    case TYPE_F32: return dot_of<Plain<F32>>(q, n, k, cells, first, strip);
    case TYPE_F16: return dot_of<Plain<F16>>(q, n, k, cells, first, strip);
    case TYPE_BF16: return dot_of<Plain<BF16>>(q, n, k, cells, first, strip);
    case TYPE_Q4_0: return dot_of<Packed<Q4_0>>(q, n, k, cells, first, strip);
    case TYPE_Q4_1: return dot_of<Packed<Q4_1>>(q, n, k, cells, first, strip);
    case TYPE_Q5_0: return dot_of<Packed<Q5_0>>(q, n, k, cells, first, strip);
    case TYPE_Q5_1: return dot_of<Packed<Q5_1>>(q, n, k, cells, first, strip);
    case TYPE_IQ4_NL: return dot_of<Packed<IQ4_NL>>(q, n, k, cells, first, strip);
    default: return dot_of<Packed<Q8_0>>(q, n, k, cells, first, strip);
    }
}

template <typename T>
DEVICE OfHeads weighted_of(const Tensor &v, const float *w, const int *cells, int n, int i) {
    OfHeads s(0.0f);
#pragma unroll 4
    for (int j = 0; j < n; j++) {
        const float value = T::load(v.data + cells[j] * v.nb[1], i);
#pragma unroll
        for (int h = 0; h < HEADS; h++) s.of[h] = fmaf(w[h * PARTITION + j], value, s.of[h]);
    }
    return s;
}

// The weighted sums of the i-th elements of `n` rows of values; weights of heads are a partition
// apart.
DEVICE OfHeads weighted(int type, const Tensor &v, const float *w, const int *cells, int n, int i) {
    switch (type) {
    case TYPE_F32: return weighted_of<Plain<F32>>(v, w, cells, n, i);
    case TYPE_F16: return weighted_of<Plain<F16>>(v, w, cells, n, i);
    case TYPE_BF16: return weighted_of<Plain<BF16>>(v, w, cells, n, i);
    case TYPE_Q4_0: return weighted_of<Packed<Q4_0>>(v, w, cells, n, i);
    case TYPE_Q4_1: return weighted_of<Packed<Q4_1>>(v, w, cells, n, i);
    case TYPE_Q5_0: return weighted_of<Packed<Q5_0>>(v, w, cells, n, i);
    case TYPE_Q5_1: return weighted_of<Packed<Q5_1>>(v, w, cells, n, i);
    case TYPE_IQ4_NL: return weighted_of<Packed<IQ4_NL>>(v, w, cells, n, i);
    default: return weighted_of<Packed<Q8_0>>(v, w, cells, n, i);
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

// Element `i` of the values' sums, in the first group's threads. `i` is a multiple of WIDTH plus the
// thread's index in its group. Positions before the `begin`-th and from the `end`-th on are not
// read.
DEVICE OfHeads values_of_block(const Params &p, const float *w, const int *cells, int begin,
                               int end, int i, int first) {
    __shared__ float parts[HEADS * PARTITION];
    const int group = static_cast<int>(threadIdx.x) / WIDTH * WIDTH;
    const int from = begin > group ? begin : group, to = end < group + WIDTH ? end : group + WIDTH;
    const int type = static_cast<int>(p.param[TYPE_V].i);
    OfHeads s(0.0f);
    if (i < p.t[0].ne[0])
        s = weighted(type, p.t[V], w + from, cells + from, to - from, first + i);
    for (int h = 0; h < HEADS; h++) parts[h * PARTITION + threadIdx.x] = s.of[h];
    sync_block();
    for (int h = 0; h < HEADS; h++)
        for (int g = 1; g < N_GROUPS; g++)
            s.of[h] += parts[h * PARTITION + g * WIDTH + threadIdx.x % WIDTH];
    sync_block();
    return s;
}

// The queries of a block: of heads `head` ... head + HEADS - 1.
struct Query {
    int token, head, kv, seq, pos;
    Span span;
    OfHeads slope;
    const float *q;  // in shared memory
};

// The cell of a position; -1 if the token does not see it.
DEVICE int cell_of(const Params &p, const Query &query, int position) {
    if (position < query.span.begin || position >= query.span.end) return -1;
    const u32 page_size = static_cast<u32>(p.param[PAGE_SIZE].i);
    const u32 i = static_cast<u32>(position) / page_size;
    const int page = page_of(p, query.seq, i);
    if (is_page(p, page))
        return static_cast<int>(page * page_size + static_cast<u32>(position) - i * page_size);
    fail(p, page, p.param[N_PAGES].i);
    return -1;
}

// The scores of the thread's position; minus infinity if it has no cell.
DEVICE OfHeads score(const Params &p, const Query &query, int position, const int *cells) {
    const int n = static_cast<int>(p.t[Q].ne[0]), type = static_cast<int>(p.param[TYPE_K].i);
    OfHeads s = dot(type, query.q, n, p.t[K], cells, query.kv * n);
    for (int h = 0; h < HEADS; h++)
        s.of[h] = cells[threadIdx.x] < 0
                      ? as_float(0xff800000u)
                      : Scores(p).of(s.of[h], query.slope.of[h], position - query.pos);
    return s;
}

// Sums of heads: the largest scores, the totals, and the values in shared memory.
struct Sums {
    OfHeads largest, total;
    float *values;

    DEVICE explicit Sums(float *values) : largest(LOWEST), total(0.0f), values(values) {}
};

// Add the sums of the partition that begins at `begin`. `is_first`: `sums` are empty.
DEVICE void attend(const Params &p, const Query &query, int begin, bool is_first, Sums &sums) {
    __shared__ float w[HEADS * PARTITION];
    __shared__ int cells[PARTITION];
    const int n_before = query.span.begin > begin ? query.span.begin - begin : 0;
    const int left = query.span.end - begin, n = left < PARTITION ? left : PARTITION;
    const int n_values = static_cast<int>(p.t[0].ne[0]);
    const int position = begin + static_cast<int>(threadIdx.x);
    cells[threadIdx.x] = cell_of(p, query, position);
    const OfHeads s = score(p, query, position, cells);
    if (cells[threadIdx.x] < 0) cells[threadIdx.x] = 0;  // for a weight of 0
    Combination with[HEADS];
    for (int h = 0; h < HEADS; h++) {
        const float largest_here = fmaxf(LOWEST, of_block<false>(s.of[h]));
        const float weight = exp2f(s.of[h] - largest_here);
        w[h * PARTITION + threadIdx.x] = weight;
        const float total_here = of_block<true>(weight);  // also waits for all weights
        with[h] = Combination(sums.largest.of[h], largest_here);
        sums.total.of[h] = with[h].add(sums.total.of[h], total_here);
    }
    for (int i = threadIdx.x % WIDTH; i - static_cast<int>(threadIdx.x) % WIDTH < n_values;
         i += WIDTH) {
        const OfHeads value = values_of_block(p, w, cells, n_before, n, i, query.kv * n_values);
        if (threadIdx.x >= WIDTH || i >= n_values) continue;
        for (int h = 0; h < HEADS; h++) {
            float *const sum = sums.values + h * n_values + i;
            *sum = with[h].add(is_first ? 0.0f : *sum, value.of[h]);
        }
    }
}

// The values that a thread adds: every WIDTH-th one of the first threads.
template <typename Work> DEVICE void for_own_values(int n_values, const Work &work) {
    for (int i = threadIdx.x; i < n_values && threadIdx.x < WIDTH; i += WIDTH) work(i);
}

// Add the sums of a segment. `is_first`: `all` are empty.
DEVICE void add(Sums &all, const Sums &segment, bool is_first, int n_values) {
    for (int h = 0; h < HEADS; h++) {
        const Combination with(all.largest.of[h], segment.largest.of[h]);
        all.total.of[h] = with.add(all.total.of[h], segment.total.of[h]);
        for_own_values(n_values, [&](int i) {
            float *const sum = all.values + h * n_values + i;
            *sum = with.add(is_first ? 0.0f : *sum, segment.values[h * n_values + i]);
        });
    }
}

DEVICE void store(const Params &p, int record, int head, const Sums &sums, int n_values) {
    for (int h = 0; h < HEADS; h++) {
        const Record to(p, record, head + h);
        if (threadIdx.x == 0) to.sums[0] = sums.largest.of[h], to.sums[1] = sums.total.of[h];
        for_own_values(n_values, [&](int i) { to.values[i] = sums.values[h * n_values + i]; });
    }
}

// Grid: (token, HEADS heads, every n-th unit). Shared memory: queries, then the values' sums of a
// segment and of all.
KERNEL(attention_f32, PARTITION, 1) {
    DYNAMIC_SHARED(float, q);
    const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y) * HEADS;
    RecordUnits units = {0, 0};
    if (gridDim.z > 1) {
        units = record_units_of(p, token);
        if (units.size == 0 && blockIdx.z > 0) return;
    }
    if (!check_token(p, token)) return;
    const int head_dim = static_cast<int>(p.t[Q].ne[0]), n_values = static_cast<int>(p.t[0].ne[0]);
    for (int h = 0; h < HEADS; h++) {
        const char *const from = at(p.t[Q], 0, head + h, token, 0);
        for (int i = threadIdx.x; i < head_dim; i += PARTITION)
            q[h * head_dim + i] = reinterpret_cast<const float *>(from)[i];
    }
    sync_block();
    const int n_shared = static_cast<int>(p.t[Q].ne[1] / (p.t[K].ne[0] / head_dim));
    OfHeads slope(0.0f);
    for (int h = 0; h < HEADS && p.param[MAX_BIAS].f > 0; h++) slope.of[h] = slope_of(p, head + h);
    const Span span = span_of(p, token);
    const Query query = {token, head, head / n_shared, int_at(p.t[SEQ], token),
                         int_at(p.t[POS], token), span, slope, q};
    float *const values = q + HEADS * head_dim;
    Sums all(values + HEADS * n_values);
    const bool is_whole = units.size == 0;
    const int size = is_whole ? segment_size(p) : units.size, n_units = span.n_units(size);
    for (int u = blockIdx.z; u < n_units; u += is_whole ? 1 : gridDim.z) {
        const int begin = (span.begin / size + u) * size, left = span.end - begin;
        const int first = span.begin > begin ? span.begin / PARTITION * PARTITION : begin;
        Sums sums(values);
        for (int i = first; i < begin + (left < size ? left : size); i += PARTITION)
            attend(p, query, i, i == first, sums);
        if (is_whole) add(all, sums, u == 0, n_values);
        else store(p, units.before + u, head, sums, n_values);
    }
    if (!is_whole && (blockIdx.z > 0 || !span.is_empty())) return;
    for (int h = 0; h < HEADS; h++) {
        const float inverse = inverse_of(all.total.of[h], all.largest.of[h], sink_of(p, head + h));
        float *const out = reinterpret_cast<float *>(at(p.t[0], 0, head + h, token, 0));
        for_own_values(n_values, [&](int i) {
            out[i] = span.is_empty() ? 0.0f : mean_of(all.values[h * n_values + i], inverse);
        });
    }
}
