// The work of a block of the attention kernels on tensor cores: its runs of tokens, their queries, and
// where tiles are in the pool. Does not know how warps share the work.
#pragma once
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
// spans is in one of them. `units`: of the first token.
struct Run {
    int begin, end;
    RecordUnits units;

    DEVICE bool is_whole() const { return units.size == 0; }
    DEVICE int record_of(const Params &p, int token) const {
        int n = units.before;
        for (int t = begin; t < token; t++) n += span_of(p, t).n_units(units.size);
        return n;
    }
    // Where the first unit of this block begins, if its run sees positions from `begin` on; and
    // what comes after its position `i`, a multiple of a divisor of units.
    DEVICE int first_position(int begin) const {
        return is_whole() ? begin : begin / units.size * units.size + blockIdx.z * units.size;
    }
    DEVICE int own_position(int i) const {
        if (is_whole() || (i & (units.size - 1)) != 0) return i;
        return i + (gridDim.z - 1) * units.size;
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
    if (starts == 0) return {end, end, {0, 0}};
    const u64 others = starts & (starts - 1);
    const int next = others ? begin + lowest_bit(others) : end;
    return {begin + lowest_bit(starts), next, {0, 0}};
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
        run.units = record_units_of(p, run.begin);
        if (run.is_whole() && blockIdx.z > 0) return false;
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

// How a partition's sums become those of a segment, then of all positions: add the sums of the
// segment's partitions before, then those of the segments before; keep the sums if more are to come.
// The first and what is kept are in one half of memory, the second in the other one.
struct Step {
    int half;
    bool adds_partitions, adds_segments, keeps;
};

// 16 rows of queries, from `row` on among those of the block.
struct Queries {
    const Row *rows;  // 16
    int row;          // the first one of them in the block
    int n_own;        // rows before the repeated ones
    Span any, every;  // the positions that a row sees, and those that every row sees
    Fragments q;

    DEVICE Queries(const Row *rows, int row, const Work &work, uint4 *shared)
        : rows(rows + row), row(row), n_own(work.n_queries() - row), q(shared) {}

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
    }

    // True if a row sees one of `n` positions from `first` on.
    DEVICE bool sees(int first, int n) const {
        return n_own > 0 && first < any.end && first + n > any.begin;
    }

    // True if a row does not see all of the tile from `first` on.
    DEVICE bool is_masked(int first) const {
        return first < every.begin || first + TILE > every.end;
    }

    // True if no row sees an infinite value of a tile that another one does not see. Values from
    // position `end` on are zeros.
    template <int STRIDE>
    DEVICE bool can_add_all(const uint4 *values, int first, int end) const {
        const bool all_see_all = first >= every.begin && min_of(first + TILE, end) <= every.end;
        return all_see_all || are_finite<STRIDE>(values);
    }

    // The record of a row's unit that contains a position; -1 if it has none.
    DEVICE int record_of(const Params &p, const Work &work, int i, int position) const {
        const Span span = rows[i].span;
        const int size = work.run.units.size;
        const int index = position / size - span.begin / size;
        if (i >= n_own || index < 0 || index >= span.n_units(size)) return -1;
        return work.run.record_of(p, work.token_of(row + i)) + index;
    }

    // What to do with the sums of the partition from `first` on.
    DEVICE Step step_after(const Params &p, const Run &run, int first) const {
        const int size = segment_size(p), begin = first & ~(size - 1), end = begin + size;
        const int next = first + PARTITION, half = first / size % 2;
        if (run.units.size == PARTITION) return {half, false, false, false};
        const bool ends = next == end || next >= any.end;  // the segment, for these queries
        return {half, first > begin && first > any.begin,
                ends && run.is_whole() && begin > any.begin,
                !ends || (run.is_whole() && end < any.end)};
    }

    // True if row `i` has a result.
    DEVICE bool has_result(int i) const { return i < n_own && !rows[i].span.is_empty(); }
};

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
