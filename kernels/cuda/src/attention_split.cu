// FLASH_ATTN_EXT on tensor cores for few queries of a sequence: the warps of a block share a
// partition of positions. Each computes a tile of 32 at a time, so that a partition takes the time
// of one or few tiles. Same bits as attention.cu: weights are relative to the largest score of the
// tiles up to their own, which needs only the largest score of each; then the tiles' products are
// added in order.
//
// A round computes WARPS tiles. While a warp waits for the other ones, its next keys are on their
// way. A tile's products take the place of its values in shared memory.
//
// The grid is that of attention.cu for one warp. Compiled also with WARPS, a power of two up to 8.
// Tested by tests/kernels/test_cuda_attention.py.
#include "attention_work.cuh"

constexpr int N_ROUNDS = PARTITION / TILE / WARPS;
constexpr int N_OCTETS = SLICE / 8;                       // of a row's values
constexpr int N_OWN = (N_OCTETS + WARPS - 1) / WARPS;     // of a warp: warp_id(), + WARPS, ...

typedef PoolTile<TYPE_K, HEAD_DIM_K, WARP, 1> Keys;
typedef PoolTile<TYPE_V, SLICE, WARP, 1> Values;
constexpr int TILES = Keys::SIZE + Values::SIZE;  // of a warp, in shared memory
constexpr int PAIRS_AT_ONCE = 4;                  // of octets: limited by registers

// What the warps of a block tell each other of their tiles.
struct Shared {
    float largest[WARPS][16];        // scores of a row
    float keep[WARPS][16];           // the factor of a row's earlier sums
    float total[WARPS][2][WARP];     // of a lane's two rows
};

// True if queries see a position of the tile from `first` on.
DEVICE bool is_seen(int first, const Span &span) {
    return first < span.end && first + TILE > span.begin;
}

// The tile of a warp in a round.
struct Place {
    int partition, round;  // round: of the partition
    int first;             // position
    bool is_used;          // a query sees a position of it
    bool is_last;          // no query sees a later round of the partition
    int cell, n;           // see find_tile

    DEVICE Place(const Params &p, const Work &work, int partition, int round, int &bad_page)
        : partition(partition),
          round(round),
          first(partition * PARTITION + (round * WARPS + warp_id()) * TILE),
          is_used(is_seen(first, work.span)),
          is_last(round == N_ROUNDS - 1 ||
                  partition * PARTITION + (round + 1) * WARPS * TILE >= work.span.end),
          cell(0),
          n(0) {
        if (is_used) cell = find_tile(p, work, first, n, bad_page);
    }
};

// A lane's part of the sums of a partition, or of several. It has the lane's two rows, but only
// the warp's octets of values.
struct Part {
    float largest[2], total[2], values[N_OWN][4];

    DEVICE Part() { clear(); }

    DEVICE void clear() {
#pragma unroll
        for (int half = 0; half < 2; half++) largest[half] = LOWEST, total[half] = 0.0f;
#pragma unroll
        for (int j = 0; j < N_OWN; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) values[j][i] = 0.0f;
    }

    // Add the tiles of a round that queries see, in order. `products`: of the first warp's tile.
    DEVICE void add_round(const Shared &of, const Place &place, const Span &span,
                          const uint4 *products) {
        const int begin = place.first - warp_id() * TILE;
#pragma unroll 2  // more would take too many registers
        for (int t = 0; t < WARPS; t++) {
            if (!is_seen(begin + t * TILE, span)) continue;
            float keep[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = lane_id() / 4 + 8 * half;
                keep[half] = of.keep[t][row];
                largest[half] = fmaxf(largest[half], of.largest[t][row]);
                total[half] = fmaf(total[half], keep[half], of.total[t][half][lane_id()]);
            }
#pragma unroll
            for (int j = 0; j < N_OWN; j++) {
                const int octet = warp_id() + j * WARPS;
                if (octet >= N_OCTETS) break;
                const uint4 v = products[t * TILES + lane_id() * Values::STRIDE + octet];
                const float next[4] = {as_float(v.x), as_float(v.y), as_float(v.z), as_float(v.w)};
#pragma unroll
                for (int i = 0; i < 4; i++) values[j][i] = fmaf(values[j][i], keep[i / 2], next[i]);
            }
        }
    }

    // Write the warp's values of a row, times a factor.
    DEVICE void store(int half, float *to, float factor) const {
#pragma unroll
        for (int j = 0; j < N_OWN; j++) {
            const int octet = warp_id() + j * WARPS;
            if (octet >= N_OCTETS) break;
#pragma unroll
            for (int i = 0; i < 2; i++)
                to[8 * octet + lane_id() % 4 * 2 + i] = mean_of(values[j][2 * half + i], factor);
        }
    }
};

// Put the products of a pair of octets in the place of its values, which no lane needs any more: a
// lane's four of an octet are where the octet of one position was.
DEVICE void store_products(uint4 *values, int pair, const float (&products)[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int octet = 2 * pair + i;
        const float(&v)[4] = products[i];
        if (octet < N_OCTETS)
            values[lane_id() * Values::STRIDE + octet] =
                make_uint4(as_bits(v[0]), as_bits(v[1]), as_bits(v[2]), as_bits(v[3]));
    }
}

// Multiply weights and values; products take the place of the values. A warp computes it.
DEVICE void multiply_tile(uint4 *values, const u32 (&w)[2][4]) {
#pragma unroll
    for (int first = 0; first < N_PAIRS; first += PAIRS_AT_ONCE) {
        float products[PAIRS_AT_ONCE][2][4];
#pragma unroll
        for (int i = 0; i < PAIRS_AT_ONCE && first + i < N_PAIRS; i++) {
            u32 v[2][4];
            load_values<Values::STRIDE>(v, values, first + i);
            multiply_values(products[i], w, v);
        }
        sync_warp();
#pragma unroll
        for (int i = 0; i < PAIRS_AT_ONCE && first + i < N_PAIRS; i++)
            store_products(values, first + i, products[i]);
    }
}

// The same for tiles with infinite or NaN values: see add_seen_values. `first`: the tile's position.
DEVICE void multiply_seen(uint4 *values, const u32 (&w)[2][4], const Row *rows, int first) {
#pragma unroll 1
    for (int pair = 0; pair < N_PAIRS; pair++) {
        float products[2][4];
#pragma unroll 1
        for (int row = 0; row < 16; row++) {
            u32 v[2][4];
            float of_row[2][4];
            load_values<Values::STRIDE>(v, values, pair);
            clear_outside(v, rows[row].span.begin - first, rows[row].span.end - first);
            multiply_values(of_row, w, v);
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i % 4 / 2 * 8 + lane_id() / 4 == row)
                    products[i / 4][i % 4] = of_row[i / 4][i % 4];
        }
        sync_warp();
        store_products(values, pair, products);
    }
}

// Sums before, in local memory: see Totals of attention_warp.cuh.
struct Before {
    volatile float memory[2][N_OWN + 1][4];

    DEVICE void add_to(Part &part, int from_half) const {
        const volatile float(&from)[N_OWN + 1][4] = memory[from_half];
        Combination with[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float both = from[0][half];
            with[half] = Combination(both, part.largest[half]);
            part.largest[half] = both;
            part.total[half] = with[half].add(from[0][2 + half], part.total[half]);
        }
#pragma unroll
        for (int j = 0; j < N_OWN; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                part.values[j][i] = with[i / 2].add(from[j + 1][i], part.values[j][i]);
    }

    DEVICE void keep(const Part &part, int to_half) {
        volatile float(&to)[N_OWN + 1][4] = memory[to_half];
#pragma unroll
        for (int half = 0; half < 2; half++)
            to[0][half] = part.largest[half], to[0][2 + half] = part.total[half];
#pragma unroll
        for (int j = 0; j < N_OWN; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) to[j + 1][i] = part.values[j][i];
    }
};

// Finish a partition. `before`: the sums of earlier ones that the block computed.
DEVICE void end_partition(const Params &p, const Work &work, const Queries &queries, int partition,
                          Part &part, Before &before) {
    const int first = partition * PARTITION, slice = work.heads.slice;
    add_over_quads(part.total);
    const Step step = queries.step_after(p, work.run, first);
    if (step.adds_partitions) before.add_to(part, step.half);
    if (step.adds_segments) before.add_to(part, step.half ^ 1);
    if (step.keeps) return before.keep(part, step.half);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = lane_id() / 4 + 8 * half;
        if (!work.run.is_whole()) {
            const int record = queries.record_of(p, work, i, first);
            if (record < 0) continue;
            const Record to(p, record, work.head_of(i));
            if (slice == 0 && warp_id() == 0 && lane_id() % 4 == 0) {
                to.sums[0] = part.largest[half];
                to.sums[1] = part.total[half];
            }
            part.store(half, to.values + slice * SLICE, 1.0f);
        } else if (queries.has_result(i)) {
            const float sink = sink_of(p, work.head_of(i));
            const float inverse = inverse_of(part.total[half], part.largest[half], sink);
            part.store(half, result_of(p, work, i), inverse);
        }
    }
}

// The largest scores of the lane's two rows before the warp's tile, and with it.
struct Largest {
    float before[2], own[2];

    DEVICE Largest(const Shared &of, const Part &part) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = lane_id() / 4 + 8 * half;
            before[half] = part.largest[half];
            for (int t = 0; t < warp_id(); t++)
                before[half] = fmaxf(before[half], of.largest[t][row]);
            own[half] = fmaxf(before[half], of.largest[warp_id()][row]);
        }
    }
};

DEVICE void attend_run(const Params &p, const Work &work, uint4 *shared) {
    __shared__ Shared of;
    __shared__ Row rows[16];
    const int last = (work.span.end - 1) / PARTITION;
    const int own = work.run.first_position(work.span.begin);
    const int begin = max_of(own, work.span.begin) / PARTITION;
    const bool has_work = !work.span.is_empty() && begin <= last;
    if (!has_work && (blockIdx.z > 0 || !work.has_empty)) return;
    uint4 *const tiles = shared + warp_id() * TILES;
    const Keys keys(p.t[K], work.heads.kv * HEAD_DIM_K, tiles);
    const Values values(p.t[V], work.heads.kv * HEAD_DIM_V + work.heads.slice * SLICE,
                        tiles + Keys::SIZE);
    list_rows<16>(rows, p, work);
    sync_block();
    if (work.has_empty && blockIdx.z == 0) store_empty<WARPS>(p, rows, work);
    if (!has_work) return;
    int bad_page = 0;
    Place now(p, work, begin, 0, bad_page);
    if (now.is_used) keys.copy(0, now.cell, now.n);
    copy_async_commit();
    if (now.is_used) values.copy(0, now.cell, now.n);
    copy_async_commit();
    const Scores scores(p);
    Queries queries(rows, 0, work, shared + WARPS * TILES);
    queries.load(p, work);
    Part part;
    Before before;
    while (true) {
        const int after = work.run.own_position((now.partition + 1) * PARTITION) / PARTITION;
        const Place next(p, work, now.is_last ? after : now.partition,
                         now.is_last ? 0 : now.round + 1, bad_page);
        float s[4][4];
        float largest[2] = {LOWEST, LOWEST};
        copy_async_wait<1>();  // its values may still be on their way
        sync_warp();
        if (now.is_used) {
            if (Keys::IS_PACKED) {
                keys.unpack(now.cell, now.n);
                sync_warp();
            }
            multiply_keys<Keys::STRIDE>(s, queries.q, keys.rows(0));
            score(s, scores, rows, now.first, queries.is_masked(now.first));
#pragma unroll
            for (int half = 0; half < 2; half++) largest[half] = largest_of(s, half, LOWEST);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (lane_id() % 4 == 0) of.largest[warp_id()][lane_id() / 4 + 8 * half] = largest[half];
        sync_warp();
        if (next.is_used) keys.copy(0, next.cell, next.n);
        copy_async_commit();
        sync_block();  // for the largest scores of all tiles
        const Largest of_row(of, part);
        copy_async_wait<1>();
        sync_warp();
        u32 w[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = lane_id() / 4 + 8 * half;
            const float total = now.is_used ? weigh(w, s, half, of_row.own[half]) : 0.0f;
            of.total[warp_id()][half][lane_id()] = total;
            const float keep = exp2f(of_row.before[half] - of_row.own[half]);
            if (lane_id() % 4 == 0) of.keep[warp_id()][row] = keep;
        }
        if (now.is_used) {
            if (Values::IS_PACKED) {
                values.unpack(now.cell, now.n);
                sync_warp();
            }
            uint4 *const v = tiles + Keys::SIZE;
            if (queries.can_add_all<Values::STRIDE>(v, now.first, work.span.end))
                multiply_tile(v, w);
            else
                multiply_seen(v, w, rows, now.first);
        }
        sync_block();  // for the products of all tiles
        part.add_round(of, now, work.span, shared + Keys::SIZE);
        if (now.is_last) {
            end_partition(p, work, queries, now.partition, part, before);
            part.clear();
            if (next.partition > last) break;
        }
        sync_block();  // before others overwrite what this warp has read
        if (next.is_used) values.copy(0, next.cell, next.n);
        copy_async_commit();
        now = next;
    }
    if (bad_page != 0) fail(p, bad_page, p.param[N_PAGES].i);
}

KERNEL(attention_split, WARPS * WARP, 1) {
    DYNAMIC_SHARED(uint4, shared);
    __shared__ Work work;
    if (threadIdx.x == 0) work = first_work(p, 16);
    sync_block();
    while (next_run(p, work)) attend_run(p, work, shared);
}
