// FLASH_ATTN_EXT on tensor cores: causal attention over a paged pool of keys and values.
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

// Consecutive tokens of a sequence. n_before: how many partitions all tokens before them see, or -1
// if partitions are not divided among blocks.
struct Run {
    int begin, end, n_before;

    DEVICE int record_of(const Params &p, int token) const {
        int n = n_before;
        for (int t = begin; t < token; t++) n += n_partitions(position_of(p, t));
        return n;
    }
};

DEVICE int lowest_bit(u64 v) {
    const u32 low = static_cast<u32>(v), high = static_cast<u32>(v >> 32);
    return low ? popcount((low & (0 - low)) - 1) : 32 + popcount((high & (0 - high)) - 1);
}

// What a block does. It is in shared memory to save registers.
struct Work {
    Heads heads;
    Run run;                      // the current run
    int seq, last;                // its sequence; the last position that it sees, or -1
    int begin, end, index, step;  // the block's tokens; it takes runs index, index + step, ...

    DEVICE int n_queries() const { return (run.end - run.begin) * heads.n; }
};

DEVICE Work first_work(const Params &p, int n_rows) {
    const int n_tokens = static_cast<int>(p.t[Q].ne[2]), n = n_shared(p);
    const int size = n < n_rows ? n_rows / n : 1, n_groups = (n_tokens + size - 1) / size;
    const int x = static_cast<int>(blockIdx.x), n_slots = static_cast<int>(gridDim.x) / n_groups;
    // the last tokens see most and begin first
    const int begin = (n_groups - 1 - x % n_groups) * size;
    const int end = begin + size < n_tokens ? begin + size : n_tokens;
    return {heads_of(p, n_rows), {}, 0, 0, begin, end, x / n_groups, n_slots};
}

// The index-th run among at most 64 tokens begin ... end - 1; an empty one if there is none.
DEVICE Run find_run(const Params &p, int begin, int end, int index) {
    u64 starts = 0;
    for (int half = 0; half < 2; half++) {
        const int t = begin + half * WARP + lane_id();
        const bool is_start =
            t < end && (t == begin || int_at(p.t[SEQ], t) != int_at(p.t[SEQ], t - 1));
        starts |= static_cast<u64>(ballot(is_start)) << (half * WARP);
    }
    for (; index > 0; index--) starts &= starts - 1;
    if (starts == 0) return {end, end, -1};
    const u64 others = starts & (starts - 1);
    return {begin + lowest_bit(starts), others ? begin + lowest_bit(others) : end, -1};
}

// The last position that a run sees; -1 if one of its tokens is invalid, so that it sees none.
DEVICE int last_position(const Params &p, const Run &run) {
    int last = -1;
    bool is_good = true;
    for (int t = run.begin + lane_id(); t < run.end; t += WARP) {
        is_good &= check_token(p, t);
        const int pos = position_of(p, t);
        last = pos > last ? pos : last;
    }
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        const int other = shfl_xor(last, mask);
        last = other > last ? other : last;
    }
    return ballot(!is_good) == 0 ? last : -1;
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
    const int last = last_position(p, run);
    sync_block();  // the work before is done
    if (threadIdx.x == 0) {
        work.run = run, work.index += work.step;
        work.seq = int_at(p.t[SEQ], run.begin), work.last = last;
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

// List the queries of a run; the last one repeats to the end of the block's `rows`.
template <int N_ROWS>
DEVICE void list_rows(Row *rows, const Params &p, const Work &work) {
    if (threadIdx.x >= N_ROWS) return;
    const int n = work.n_queries(), own = static_cast<int>(threadIdx.x);
    const int i = own < n ? own : n - 1;
    const Heads &heads = work.heads;
    const int token = work.run.begin + i / heads.n, head = heads.first + i % heads.n;
    const float slope = p.param[MAX_BIAS].f > 0 ? slope_of(p, head) : 0.0f;
    rows[own] = {token, head, position_of(p, token), slope};
}

struct Queries {
    const Row *rows;  // 16
    int n_own;        // rows before the repeated ones
    int least, most;  // smallest and largest position of the rows
    Fragments q;
    Sums part;

    DEVICE Queries(const Row *rows, int n_own, uint4 *shared)
        : rows(rows), n_own(n_own), q(shared) {}

    DEVICE void load(const Params &p) {
        least = most = rows[lane_id() % 16].pos;
        for (int mask = 8; mask > 0; mask /= 2) {
            const int a = shfl_xor(least, mask), b = shfl_xor(most, mask);
            least = a < least ? a : least;
            most = b > most ? b : most;
        }
        q.load(p.t[Q], rows);
        part.clear();
    }

    DEVICE bool sees(int first) const { return n_own > 0 && first <= most; }

    // Add the tile of positions from `first` on; values past position `last` are not there.
    template <int K_STRIDE, int V_STRIDE>
    DEVICE void attend(const uint4 *keys, const uint4 *values, const Scores &scores, int first,
                       int last) {
        const int end = first + TILE - 1;
        float s[4][4], keep[2];
        u32 w[2][4];
        multiply_keys<K_STRIDE>(s, q, keys);
        score(s, scores, rows, first, end > least);
        weigh(w, keep, part, s);
        const bool all_see_all = (end < last ? end : last) <= least;
        if (all_see_all || are_finite<V_STRIDE>(values))
            add_values<V_STRIDE>(part, w, keep, values);
        else
            add_seen_values<V_STRIDE>(part, w, keep, values, rows, first);
    }

    // Finish a partition: all of its positions were added.
    DEVICE void end_partition(const Params &p, const Work &work, int partition, Totals &all) {
        if (!sees(partition * PARTITION)) return;
        part.add_totals();
        if (work.run.n_before >= 0) {
            store_records(p, work, partition);
        } else {
            if (partition > 0) all.add_to(part, partition);
            if (sees((partition + 1) * PARTITION)) all.keep(part, partition);
            else store_results(p, work.heads.slice);
        }
        part.clear();
    }

    DEVICE void store_records(const Params &p, const Work &work, int partition) const {
        const int slice = work.heads.slice;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = lane_id() / 4 + 8 * half;
            const Row &row = rows[i];
            if (i >= n_own || partition * PARTITION > row.pos) continue;
            const Record to(p, work.run.record_of(p, row.token) + partition, row.head);
            if (slice == 0 && lane_id() % 4 == 0) {
                to.sums[0] = part.largest[half];
                to.sums[1] = part.total[half];
            }
            part.store(half, to.values + slice * SLICE, 1.0f);
        }
    }

    DEVICE void store_results(const Params &p, int slice) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = lane_id() / 4 + 8 * half;
            const Row &row = rows[i];
            if (i >= n_own) continue;
            float *const to = reinterpret_cast<float *>(at(p.t[0], 0, row.head, row.token, 0));
            part.store(half, to + slice * SLICE, 1.0f / part.total[half]);
        }
    }
};

// --- the kernels ---

// The pool's cell of a tile's first position; `n`: how many of the tile's positions are seen. A
// page out of range counts as zeros, and is noted in `bad_page` for the report.
DEVICE int find_tile(const Params &p, const Work &work, int first, int &n, int &bad_page) {
    n = 0;
    const int n_left = work.last - first + 1;
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
    int next = is_whole ? 0 : blockIdx.z * PARTITION;
    if (next > work.last) return;
    const Keys keys(p.t[K], heads.kv * HEAD_DIM_K, shared);
    const Values values(p.t[V], heads.kv * HEAD_DIM_V + heads.slice * SLICE, shared + Keys::SIZE);
    uint4 *const behind = shared + Keys::SIZE + Values::SIZE;
    Row *const rows = reinterpret_cast<Row *>(behind + N_LENT * N_WARPS * WARP);
    list_rows<16 * N_WARPS>(rows, p, work);
    const Scores scores(p);
    Queries queries(rows + 16 * warp_id(), work.n_queries() - 16 * warp_id(), behind);
    Totals all;
    int n = 0, cell = 0, bad_page = 0, n_next;
    int next_cell = find_tile(p, work, next, n_next, bad_page);
    // while a tile is used, the next one is in flight
    for (int first = -1, stage = 0; first <= work.last; stage ^= 1) {
        copy_async_wait<0>();
        sync_block();
        if ((Keys::IS_PACKED || Values::IS_PACKED) && first >= 0) {
            keys.unpack(cell, n);
            values.unpack(cell, n);
            sync_block();
        }
        if (next <= work.last) {
            keys.copy(stage, next_cell, n_next);
            values.copy(stage, next_cell, n_next);
        }
        copy_async_commit();
        const int now = first, then = next_tile(next, is_whole ? 1 : gridDim.z);
        first = next, cell = next_cell, n = n_next;
        next = then;  // its cell is found now, in time for the next round
        next_cell = find_tile(p, work, next, n_next, bad_page);
        if (now < 0) {
            queries.load(p);
            continue;
        }
        if (queries.sees(now))
            queries.template attend<Keys::STRIDE, Values::STRIDE>(
                keys.rows(stage ^ 1), values.rows(stage ^ 1), scores, now, work.last);
        if (first > work.last || first / PARTITION != now / PARTITION)
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
