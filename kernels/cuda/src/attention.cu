// FLASH_ATTN_EXT on tensor cores: attention over a paged pool of keys and values.
//
// A block has the queries of some tokens of one sequence, whose heads share keys and values. It
// computes all partitions of positions that they see, in order (see attention.cuh); or every n-th
// partition or segment, and writes those sums to scratch memory for `attention_combine`. Blocks of one warp
// serve decoding. Blocks of four warps share each read of the pool among more queries. All give
// equal bits.
//
// Grid: (groups of tokens times their sequences, heads of K times parts of them, every n-th
// partition). Compiled with HEAD_DIM_K and HEAD_DIM_V, TYPE_K and TYPE_V
// (F16 or types of attention_blocks.cuh, or both BF16).
// Tested by tests/kernels/test_cuda_attention.py.
#include "attention_work.cuh"

// --- the work of a warp ---

// The queries of a warp, and their sums over a partition.
struct Attention : Queries {
    Sums part;

    DEVICE Attention(const Row *rows, const Work &work, uint4 *shared)
        : Queries(rows, 16 * warp_id(), work, shared) {}

    // Add the tile of positions from `first` on; values from position `end` on are zeros.
    template <int K_STRIDE, int V_STRIDE>
    DEVICE void attend(const uint4 *keys, const uint4 *values, const Scores &scores, int first,
                       int end) {
        float s[4][4], keep[2];
        u32 w[2][4];
        multiply_keys<K_STRIDE>(s, q, keys);
        score(s, scores, rows, first, is_masked(first));
        weigh(w, keep, part, s);
        if (can_add_all<V_STRIDE>(values, first, end))
            add_values<V_STRIDE>(part, w, keep, values);
        else
            add_seen_values<V_STRIDE>(part, w, keep, values, rows, first);
    }

    // Finish a partition: all of its positions were added.
    DEVICE void end_partition(const Params &p, const Work &work, int partition, Totals &all) {
        const int first = partition * PARTITION;
        if (!sees(first, PARTITION)) return;
        add_over_quads(part.total);
        const Step step = step_after(p, work.run, first);
        if (step.adds_partitions) all.add_to(part, step.half);
        if (step.adds_segments) all.add_to(part, step.half ^ 1);
        if (step.keeps) all.keep(part, step.half);
        else if (work.run.is_whole()) store_results(p, work);
        else store_records(p, work, first);
        part.clear();
    }

    // `first`: a position of the unit.
    DEVICE void store_records(const Params &p, const Work &work, int first) const {
        const int slice = work.heads.slice;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = lane_id() / 4 + 8 * half, record = record_of(p, work, i, first);
            if (record < 0) continue;
            const Record to(p, record, work.head_of(row + i));
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
            if (!has_result(i)) continue;
            const float sink = sink_of(p, work.head_of(row + i));
            const float inverse = inverse_of(part.total[half], part.largest[half], sink);
            part.store(half, result_of(p, work, row + i), inverse);
        }
    }
};

// --- the kernels ---

template <int N_WARPS> DEVICE void attend_run(const Params &p, const Work &work, uint4 *shared) {
    typedef PoolTile<TYPE_K, HEAD_DIM_K, N_WARPS * WARP> Keys;
    typedef PoolTile<TYPE_V, SLICE, N_WARPS * WARP> Values;
    const Heads &heads = work.heads;
    int next = work.run.first_position(work.span.begin);
    if (next <= work.span.begin) next = work.span.begin / TILE * TILE;
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
    Attention queries(rows, work, behind);
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
        const int now = first;
        first = next, cell = next_cell, n = n_next;
        next = work.run.own_position(next + TILE);  // its cell is found now, in time for the next round
        next_cell = find_tile(p, work, next, n_next, bad_page);
        if (now < 0) {
            queries.load(p, work);
            queries.part.clear();
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
