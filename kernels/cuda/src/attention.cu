// FLASH_ATTN_EXT on tensor cores: attention over a paged pool of keys and values.
//
// A block has the queries of some tokens of one sequence, whose heads share keys and values. It
// computes all partitions of positions that they see, in order (see attention.cuh); or every n-th
// partition, and writes those sums to scratch memory for `attention_combine`. Blocks of one warp
// serve decoding. Blocks of four warps share each read of the pool among more queries. All give
// equal bits.
//
// Grid: (groups of tokens times their sequences, heads of K times parts of them, every n-th
// partition). Compiled with HEAD_DIM_K and HEAD_DIM_V, TYPE_K and TYPE_V (F16 or Q8_0).
// Tested by tests/kernels/test_cuda_attention.py.
#include "attention_warp.cuh"

// --- the work of a block ---

DEVICE int min_of(int a, int b) { return a < b ? a : b; }
DEVICE int max_of(int a, int b) { return a > b ? a : b; }

// Heads `first` ... first + n - 1. They read head `kv` of K, and a slice of head `kv` of V.
struct Heads {
    int kv, first, n, slice;
};

DEVICE int n_shared(const Params &p) {
    return static_cast<int>(p.t[Q].ne[1]) / (static_cast<int>(p.t[K].ne[0]) / HEAD_DIM_K);
}

DEVICE Heads heads_of(const Params &p, int n_rows) {
    const int n = n_shared(p), n_parts = (n + n_rows - 1) / n_rows;
    const int i = static_cast<int>(blockIdx.y), part = i / N_SLICES % n_parts;
    const int kv = i / N_SLICES / n_parts, begin = part * n_rows;
    return {kv, kv * n + begin, n - begin < n_rows ? n - begin : n_rows, i % N_SLICES};
}

// Consecutive tokens of a sequence, such that every position from the first to the last of their
// spans is in one of them. n_before: how many partitions all tokens before them see, or -1 if
// partitions are not divided among blocks.
struct Run {
    int begin, end, n_before;

    DEVICE int record_of(const Params &p, int token) const {
        int n = n_before;
        for (int t = begin; t < token; t++) n += span_of(p, t).n_partitions();
        return n;
    }
};

// True if token `t` and the one before may be in one run.
DEVICE bool belong(const Params &p, int t) {
    return int_at(p.t[SEQ], t) == int_at(p.t[SEQ], t - 1) &&
           int_at(p.t[BEGIN], t) <= int_at(p.t[END], t - 1) &&
           int_at(p.t[BEGIN], t - 1) <= int_at(p.t[END], t);
}

DEVICE int lowest_bit(u64 v) {
    const u32 low = static_cast<u32>(v), high = static_cast<u32>(v >> 32);
    return low ? popcount((low & (0 - low)) - 1) : 32 + popcount((high & (0 - high)) - 1);
}

// What a block does. It is in shared memory to save registers.
struct Work {
    Heads heads;
    Run run;                      // the current run
    int seq;                      // its sequence
    Span span;                    // the positions that it sees
    bool has_empty;               // a token of it sees none
    int begin, end, index, step;  // the block's tokens; it takes runs index, index + step, ...

    DEVICE int n_queries() const { return (run.end - run.begin) * heads.n; }
    // The token and the head of a query; the last query repeats to the end of the block's rows.
    DEVICE int token_of(int row) const { return run.begin + min_of(row, n_queries() - 1) / heads.n; }
    DEVICE int head_of(int row) const {
        return heads.first + min_of(row, n_queries() - 1) % heads.n;
    }
};

DEVICE Work first_work(const Params &p, int n_rows) {
    const int n_tokens = static_cast<int>(p.t[Q].ne[2]), n = n_shared(p);
    const int size = n < n_rows ? n_rows / n : 1, n_groups = (n_tokens + size - 1) / size;
    const int x = static_cast<int>(blockIdx.x), n_slots = static_cast<int>(gridDim.x) / n_groups;
    // the last tokens see most and begin first
    const int begin = (n_groups - 1 - x % n_groups) * size;
    const int end = begin + size < n_tokens ? begin + size : n_tokens;
    return {heads_of(p, n_rows), {}, 0, {0, 0}, false, begin, end, x / n_groups, n_slots};
}

// The index-th run among at most 64 tokens begin ... end - 1; an empty one if there is none.
DEVICE Run find_run(const Params &p, int begin, int end, int index) {
    u64 starts = 0;
    for (int half = 0; half < 2; half++) {
        const int t = begin + half * WARP + lane_id();
        const bool is_start = t < end && (t == begin || !belong(p, t));
        starts |= static_cast<u64>(ballot(is_start)) << (half * WARP);
    }
    for (; index > 0; index--) starts &= starts - 1;
    if (starts == 0) return {end, end, -1};
    const u64 others = starts & (starts - 1);
    return {begin + lowest_bit(starts), others ? begin + lowest_bit(others) : end, -1};
}

// The positions that a run sees; none if one of its tokens is invalid. `has_empty`: a token of it
// sees none.
DEVICE Span span_of_run(const Params &p, const Run &run, bool &has_empty) {
    Span all = {0x7fffffff, 0};
    bool is_good = true;
    has_empty = false;
    for (int t = run.begin + lane_id(); t < run.end; t += WARP) {
        is_good &= check_token(p, t);
        const Span span = span_of(p, t);
        has_empty |= span.is_empty();
        all = {min_of(all.begin, span.begin), max_of(all.end, span.end)};
    }
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        const Span other = {shfl_xor(all.begin, mask), shfl_xor(all.end, mask)};
        all = {min_of(all.begin, other.begin), max_of(all.end, other.end)};
    }
    has_empty = ballot(has_empty) != 0;
    if (ballot(!is_good) != 0) return {0, 0};
    return all;
}

// Make the next run the block's work. Return false if none is left.
DEVICE bool next_run(const Params &p, Work &work) {
    Run run = find_run(p, work.begin, work.end, work.index);
    if (run.begin == run.end) return false;
    if (gridDim.z > 1) {
        const PartitionCount count(p, run.begin);
        if (count.has_room(p)) run.n_before = count.before;
        else if (blockIdx.z > 0) return false;
    }
    bool has_empty;
    const Span span = span_of_run(p, run, has_empty);
    sync_block();  // the work before is done
    if (threadIdx.x == 0) {
        work.run = run, work.index += work.step;
        work.seq = int_at(p.t[SEQ], run.begin), work.span = span, work.has_empty = has_empty;
    }
    sync_block();
    return true;
}

// Where the tile of 32 positions after the one at `first` begins, in every n-th partition.
DEVICE int next_tile(int first, int n) {
    const int next = first + TILE;
    return next % PARTITION ? next : next + (n - 1) * PARTITION;
}

// --- the work of a warp ---

// List the queries of a run.
template <int N_ROWS>
DEVICE void list_rows(Row *rows, const Params &p, const Work &work) {
    if (threadIdx.x >= N_ROWS) return;
    const int own = static_cast<int>(threadIdx.x), token = work.token_of(own);
    const float slope = p.param[MAX_BIAS].f > 0 ? slope_of(p, work.head_of(own)) : 0.0f;
    rows[own] = {int_at(p.t[POS], token), span_of(p, token), slope};
}

DEVICE float *result_of(const Params &p, const Work &work, int row) {
    return reinterpret_cast<float *>(at(p.t[0], 0, work.head_of(row), work.token_of(row), 0)) +
           work.heads.slice * SLICE;
}

// Write zeros as the results of tokens that see no position.
template <int N_WARPS>
DEVICE void store_empty(const Params &p, const Row *rows, const Work &work) {
    for (int row = 0; row < work.n_queries(); row++) {
        if (!rows[row].span.is_empty()) continue;
        float *const to = result_of(p, work, row);
        for (int i = threadIdx.x; i < SLICE; i += N_WARPS * WARP) to[i] = 0.0f;
    }
}

struct Queries {
    const Row *rows;  // 16
    int row;          // the first one of them in the block
    int n_own;        // rows before the repeated ones
    Span any, every;  // the positions that a row sees, and those that every row sees
    Fragments q;
    Sums part;

    DEVICE Queries(const Row *rows, const Work &work, uint4 *shared)
        : rows(rows + 16 * warp_id()),
          row(16 * warp_id()),
          n_own(work.n_queries() - row),
          q(shared) {}

    DEVICE void load(const Params &p, const Work &work) {
        any = every = rows[lane_id() % 16].span;
        for (int mask = 8; mask > 0; mask /= 2) {
            const Span a = {shfl_xor(any.begin, mask), shfl_xor(any.end, mask)};
            const Span b = {shfl_xor(every.begin, mask), shfl_xor(every.end, mask)};
            any = {min_of(any.begin, a.begin), max_of(any.end, a.end)};
            every = {max_of(every.begin, b.begin), min_of(every.end, b.end)};
        }
        const float *x[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row + lane_id() / 4 + 8 * half;
            x[half] = reinterpret_cast<const float *>(
                at(p.t[Q], 0, work.head_of(i), work.token_of(i), 0));
        }
        q.load(x);
        part.clear();
    }

    // True if a row sees one of `n` positions from `first` on.
    DEVICE bool sees(int first, int n) const {
        return n_own > 0 && first < any.end && first + n > any.begin;
    }

    // Add the tile of positions from `first` on; values from position `end` on are zeros.
    template <int K_STRIDE, int V_STRIDE>
    DEVICE void attend(const uint4 *keys, const uint4 *values, const Scores &scores, int first,
                       int end) {
        float s[4][4], keep[2];
        u32 w[2][4];
        multiply_keys<K_STRIDE>(s, q, keys);
        score(s, scores, rows, first, first < every.begin || first + TILE > every.end);
        weigh(w, keep, part, s);
        const bool all_see_all = first >= every.begin && min_of(first + TILE, end) <= every.end;
        if (all_see_all || are_finite<V_STRIDE>(values))
            add_values<V_STRIDE>(part, w, keep, values);
        else
            add_seen_values<V_STRIDE>(part, w, keep, values, rows, first);
    }

    // Finish a partition: all of its positions were added.
    DEVICE void end_partition(const Params &p, const Work &work, int partition, Totals &all) {
        const int first = partition * PARTITION;
        if (!sees(first, PARTITION)) return;
        part.add_totals();
        if (work.run.n_before >= 0) {
            store_records(p, work, partition);
        } else {
            if (any.begin < first) all.add_to(part, partition);
            if (any.end > first + PARTITION) all.keep(part, partition);
            else store_results(p, work);
        }
        part.clear();
    }

    DEVICE void store_records(const Params &p, const Work &work, int partition) const {
        const int slice = work.heads.slice;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = lane_id() / 4 + 8 * half;
            const Span span = rows[i].span;
            const int index = partition - span.begin / PARTITION;
            if (i >= n_own || index < 0 || index >= span.n_partitions()) continue;
            const int before = work.run.record_of(p, work.token_of(row + i));
            const Record to(p, before + index, work.head_of(row + i));
            if (slice == 0 && lane_id() % 4 == 0) {
                to.sums[0] = part.largest[half];
                to.sums[1] = part.total[half];
            }
            part.store(half, to.values + slice * SLICE, 1.0f);
        }
    }

    DEVICE void store_results(const Params &p, const Work &work) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = lane_id() / 4 + 8 * half;
            if (i >= n_own || rows[i].span.is_empty()) continue;
            const float sink = sink_of(p, work.head_of(row + i));
            const float inverse = inverse_of(part.total[half], part.largest[half], sink);
            part.store(half, result_of(p, work, row + i), inverse);
        }
    }
};

// --- the kernels ---

// The pool's cell of a tile's first position; `n`: how many of its positions are before the end of
// the run's span. A page out of range counts as zeros, and is noted in `bad_page` for the report.
DEVICE int find_tile(const Params &p, const Work &work, int first, int &n, int &bad_page) {
    n = 0;
    const int n_left = work.span.end - first;
    if (n_left <= 0) return 0;
    const u32 mask = static_cast<u32>(p.param[PAGE_SIZE].i) - 1, i = static_cast<u32>(first);
    const int page = page_of(p, work.seq, i >> popcount(mask));
    if (!is_page(p, page)) {
        bad_page = page;
        return 0;
    }
    n = n_left < TILE ? n_left : TILE;
    return static_cast<int>(page * (mask + 1) + (i & mask));
}

template <int N_WARPS> DEVICE void attend_run(const Params &p, const Work &work, uint4 *shared) {
    typedef PoolTile<TYPE_K, HEAD_DIM_K, N_WARPS * WARP> Keys;
    typedef PoolTile<TYPE_V, SLICE, N_WARPS * WARP> Values;
    const Heads &heads = work.heads;
    const bool is_whole = work.run.n_before < 0;
    const int begin = work.span.begin / PARTITION * PARTITION;
    int next = is_whole ? begin : begin + blockIdx.z * PARTITION;
    if (next < work.span.begin) next = work.span.begin / TILE * TILE;
    if (next >= work.span.end && (blockIdx.z > 0 || !work.has_empty)) return;
    const Keys keys(p.t[K], heads.kv * HEAD_DIM_K, shared);
    const Values values(p.t[V], heads.kv * HEAD_DIM_V + heads.slice * SLICE, shared + Keys::SIZE);
    uint4 *const behind = shared + Keys::SIZE + Values::SIZE;
    Row *const rows = reinterpret_cast<Row *>(behind + N_LENT * N_WARPS * WARP);
    list_rows<16 * N_WARPS>(rows, p, work);
    if (work.has_empty) {
        sync_block();  // for all rows
        store_empty<N_WARPS>(p, rows, work);
        if (next >= work.span.end) return;
    }
    const Scores scores(p);
    Queries queries(rows, work, behind);
    Totals all;
    int n = 0, cell = 0, bad_page = 0, n_next;
    int next_cell = find_tile(p, work, next, n_next, bad_page);
    // while a tile is used, the next one is in flight
    for (int first = -1, stage = 0; first < work.span.end; stage ^= 1) {
        copy_async_wait<0>();
        sync_block();
        if ((Keys::IS_PACKED || Values::IS_PACKED) && first >= 0) {
            keys.unpack(cell, n);
            values.unpack(cell, n);
            sync_block();
        }
        if (next < work.span.end) {
            keys.copy(stage, next_cell, n_next);
            values.copy(stage, next_cell, n_next);
        }
        copy_async_commit();
        const int now = first, then = next_tile(next, is_whole ? 1 : gridDim.z);
        first = next, cell = next_cell, n = n_next;
        next = then;  // its cell is found now, in time for the next round
        next_cell = find_tile(p, work, next, n_next, bad_page);
        if (now < 0) {
            queries.load(p, work);
            continue;
        }
        if (queries.sees(now, TILE))
            queries.template attend<Keys::STRIDE, Values::STRIDE>(
                keys.rows(stage ^ 1), values.rows(stage ^ 1), scores, now, work.span.end);
        if (first >= work.span.end || first / PARTITION != now / PARTITION)
            queries.end_partition(p, work, now / PARTITION, all);
    }
    if (bad_page != 0) fail(p, bad_page, p.param[N_PAGES].i);
}

template <int N_WARPS> DEVICE void attend(const Params &p) {
    DYNAMIC_SHARED(uint4, shared);
    __shared__ Work work;
    if (threadIdx.x == 0) work = first_work(p, 16 * N_WARPS);
    sync_block();
    while (next_run(p, work)) attend_run<N_WARPS>(p, work, shared);
}

KERNEL(attention_1, 32, 1) { attend<1>(p); }
KERNEL(attention_4, 128, 2) { attend<4>(p); }
