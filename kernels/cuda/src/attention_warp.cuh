// The 16 queries of a warp, and how a tile of 32 positions changes their sums: online softmax
// (arXiv 2205.14135) on tensor cores. Queries, keys, values and weights are float16, or bfloat16 if
// the pool is; the rest is float32. A query's result depends only on itself and the positions that
// it sees.
//
// A lane has rows lane / 4 and lane / 4 + 8 of the 16, and a quarter of their elements, in
// mma_f16's fragment layout. Compiled with HEAD_DIM_K and HEAD_DIM_V, multiples of 8.
#pragma once
#include "attention.cuh"
#include "attention_tile.cuh"

typedef Operands<TYPE_K> Operand;  // TYPE_V has the same

constexpr int N_STEPS = (HEAD_DIM_K + 15) / 16;     // tensor-core steps along a key
constexpr int N_SLICES = (HEAD_DIM_V + 127) / 128;  // slices of values; registers have room for one
constexpr int SLICE = HEAD_DIM_V / N_SLICES;        // elements
constexpr int N_PAIRS = (SLICE + 15) / 16;          // pairs of 8 elements

// Registers have room for N_KEPT steps of a large query, at most 10; unpacking tiles needs some.
constexpr bool IS_PACKED =
    PoolTile<TYPE_K, HEAD_DIM_K, WARP>::IS_PACKED || PoolTile<TYPE_V, SLICE, WARP>::IS_PACKED;
constexpr int N_LENT = N_STEPS <= (IS_PACKED ? 6 : 8) ? 0 : N_STEPS <= 16 ? 6 : N_STEPS - 4;
constexpr int N_KEPT = N_STEPS - N_LENT;

// A query, in shared memory. It is read again for each use.
struct Row {
    int pos;
    Span span;
    float slope;
};

// Sums of a lane's two rows. `largest` is of a whole row, `total` may be of a part of it.
struct Sums {
    float largest[2], total[2], values[2 * N_PAIRS][4];

    DEVICE void clear() {
#pragma unroll
        for (int half = 0; half < 2; half++) largest[half] = LOWEST, total[half] = 0.0f;
#pragma unroll
        for (int n = 0; n < 2 * N_PAIRS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) values[n][i] = 0.0f;
    }

    // Write the values of a row, times a factor.
    DEVICE void store(int half, float *to, float factor) const {
#pragma unroll
        for (int n = 0; n < SLICE / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                to[8 * n + lane_id() % 4 * 2 + i] = mean_of(values[n][2 * half + i], factor);
    }
};

// Sums over the partitions of a segment so far, and over all segments before. They are used once in
// a partition, so they are in local memory to save registers. Segments alternate between the two
// halves of `memory`: an index known only at run time keeps the array out of registers.
struct Totals {
    volatile float memory[2][2 * N_PAIRS + 1][4];

    // Add the sums before.
    DEVICE void add_to(Sums &sums, int from_half) const {
        const volatile float(&from)[2 * N_PAIRS + 1][4] = memory[from_half];
        float both[2] = {from[0][0], from[0][1]};
        const Combination with[2] = {{both[0], sums.largest[0]}, {both[1], sums.largest[1]}};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sums.largest[half] = both[half];
            sums.total[half] = with[half].add(from[0][2 + half], sums.total[half]);
        }
#pragma unroll
        for (int n = 0; n < 2 * N_PAIRS; n++) {
            if (n % 4 == 0) sync_warp();  // limits the loads at once, and so the registers
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums.values[n][i] = with[i / 2].add(from[n + 1][i], sums.values[n][i]);
        }
    }

    DEVICE void keep(const Sums &sums, int to_half) {
        volatile float(&to)[2 * N_PAIRS + 1][4] = memory[to_half];
#pragma unroll
        for (int half = 0; half < 2; half++)
            to[0][half] = sums.largest[half], to[0][2 + half] = sums.total[half];
#pragma unroll
        for (int n = 0; n < 2 * N_PAIRS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) to[n + 1][i] = sums.values[n][i];
    }
};

// --- queries ---

DEVICE u32 load_pair(const float *q, int d) {
    if (d >= HEAD_DIM_K) return 0;
    return Operand::two(q[d], q[d + 1]);
}

// A lane's part of the warp's queries. The last N_LENT steps are in shared memory, `lent`; each
// lane reads there what it wrote.
struct Fragments {
    u32 kept[N_KEPT][4];
    uint4 *lent;

    DEVICE explicit Fragments(uint4 *shared)
        : lent(shared + warp_id() * N_LENT * WARP + lane_id()) {}

    // Load the lane's two rows, which begin at `x`.
    DEVICE void load(const float *const (&x)[2]) {
#pragma unroll
        for (int step = 0; step < N_STEPS; step++) {
            if (step % 4 == 0) sync_warp();  // limits the loads at once, and so the registers
            u32 q[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[i] = load_pair(x[i % 2], 16 * step + i / 2 * 8 + lane_id() % 4 * 2);
            if (step >= N_KEPT) lent[(step - N_KEPT) * WARP] = make_uint4(q[0], q[1], q[2], q[3]);
            else
#pragma unroll
                for (int i = 0; i < 4; i++) kept[step][i] = q[i];
        }
    }

    DEVICE void get(u32 (&q)[4], int step) const {
        if (step < N_KEPT) {
#pragma unroll
            for (int i = 0; i < 4; i++) q[i] = kept[step][i];
        } else {
            const uint4 v = lent[(step - N_KEPT) * WARP];
            q[0] = v.x, q[1] = v.y, q[2] = v.z, q[3] = v.w;
        }
    }
};

// --- a tile: of each 8 positions, a lane has two from 2 * (lane % 4) on, for both of its rows ---

// Multiply queries and keys.
template <int STRIDE>
DEVICE void multiply_keys(float (&s)[4][4], const Fragments &queries, const uint4 *keys) {
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
    const int matrix = lane_id() / 8;
    const uint4 *const from = keys + (matrix / 2 * 8 + lane_id() % 8) * STRIDE + matrix % 2;
#pragma unroll
    for (int step = 0; step < N_STEPS; step++) {
        u32 q[4];
        queries.get(q, step);
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            u32 k[4];
            load_matrix_x4(k, from + 8 * n * STRIDE + 2 * step);
            const u32 low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
            Operand::multiply(s[n], q, low);
            Operand::multiply(s[n + 1], q, high);
        }
    }
}

// Turn products into scores: minus infinity for positions that a row does not see. `first` is the
// tile's first position.
DEVICE void score(float (&s)[4][4], const Scores &scores, const Row *rows, int first,
                  bool is_masked) {
    const int begin = first + lane_id() % 4 * 2;
    if (scores.is_plain()) {
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) s[n][i] *= scores.scale;
        if (!is_masked) return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const Row &row = rows[lane_id() / 4 + 8 * half];
        const int pos = row.pos;
        const Span span = row.span;
        const float slope = row.slope;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &v = s[i / 2][2 * half + i % 2];
            const int position = begin + i / 2 * 8 + i % 2;
            if (!scores.is_plain()) v = scores.of(v, slope, position - pos);
            if (position < span.begin || position >= span.end) v = as_float(0xff800000u);
        }
    }
}

// The largest of a row's scores and `largest`. `half`: which of the lane's two rows.
DEVICE float largest_of(const float (&s)[4][4], int half, float largest) {
#pragma unroll
    for (int n = 0; n < 4; n++)
        largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    largest = fmaxf(largest, shfl_xor(largest, 1));
    return fmaxf(largest, shfl_xor(largest, 2));
}

// Turn a row's scores into weights, relative to the largest one. Return the sum of the lane's.
DEVICE float weigh(u32 (&w)[2][4], const float (&s)[4][4], int half, float largest) {
    float total = 0.0f;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float a = exp2f(s[n][2 * half] - largest);
        const float b = exp2f(s[n][2 * half + 1] - largest);
        w[n / 2][n % 2 * 2 + half] = Operand::two(a, b);
        total += a + b;
    }
    return total;
}

// Turn scores into weights, relative to the largest score so far. `keep`: factors of earlier sums.
DEVICE void weigh(u32 (&w)[2][4], float (&keep)[2], Sums &sums, float (&s)[4][4]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float largest = largest_of(s, half, sums.largest[half]);
        keep[half] = exp2f(sums.largest[half] - largest);
        sums.largest[half] = largest;
        const float total = weigh(w, s, half, largest);
        sums.total[half] = fmaf(sums.total[half], keep[half], total);
    }
}

// --- values ---

// The pair-th 16 elements of a tile's values.
template <int STRIDE> DEVICE void load_values(u32 (&v)[2][4], const uint4 *values, int pair) {
    const uint4 *const from = values + lane_id() % 16 * STRIDE + 2 * pair + lane_id() / 16;
    load_matrix_x4_trans(v[0], from);
    load_matrix_x4_trans(v[1], from + 16 * STRIDE);
}

// Multiply weights and values.
DEVICE void multiply_values(float (&sums)[2][4], const u32 (&w)[2][4], const u32 (&v)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
#pragma unroll
        for (int step = 0; step < 2; step++) {
            const u32 b[2] = {v[step][2 * n], v[step][2 * n + 1]};
            Operand::multiply(sums[n], w[step], b);
        }
    }
}

// Add weighted values.
template <int STRIDE>
DEVICE void add_values(Sums &sums, const u32 (&w)[2][4], const float (&keep)[2],
                       const uint4 *values) {
#pragma unroll
    for (int pair = 0; pair < N_PAIRS; pair++) {
        if (pair % 4 == 0) sync_warp();  // limits the loads at once, and so the registers
        u32 v[2][4];
        float next[2][4];
        load_values<STRIDE>(v, values, pair);
        multiply_values(next, w, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float &sum = sums.values[2 * pair + i / 4][i % 4];
            sum = fmaf(sum, keep[i % 4 / 2], next[i / 4][i % 4]);
        }
    }
}

// Clear elements of values whose positions in the tile are below `begin`, or `end` and above.
DEVICE void clear_outside(u32 (&v)[2][4], int begin, int end) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int position = i / 4 * 16 + i % 2 * 8 + lane_id() % 4 * 2;
        u32 &two = v[i / 4][i % 4];
        if (position < begin || position >= end) two &= 0xffff0000u;
        if (position + 1 < begin || position + 1 >= end) two &= 0xffffu;
    }
}

// Like add_values, for tiles with infinite or NaN values: 0 times such a value is NaN. So each row
// gets products without the positions that it does not see. `first` is the tile's first position.
template <int STRIDE>
DEVICE void add_seen_values(Sums &sums, const u32 (&w)[2][4], const float (&keep)[2],
                            const uint4 *values, const Row *rows, int first) {
#pragma unroll
    for (int pair = 0; pair < N_PAIRS; pair++)
#pragma unroll 1
        for (int row = 0; row < 16; row++) {
            u32 v[2][4];
            float next[2][4];
            load_values<STRIDE>(v, values, pair);
            clear_outside(v, rows[row].span.begin - first, rows[row].span.end - first);
            multiply_values(next, w, v);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float &sum = sums.values[2 * pair + i / 4][i % 4];
                if (i % 4 / 2 * 8 + lane_id() / 4 == row)
                    sum = fmaf(sum, keep[i % 4 / 2], next[i / 4][i % 4]);
            }
        }
}

// True if all values of a tile are finite. A whole warp computes it.
template <int STRIDE> DEVICE bool are_finite(const uint4 *values) {
    bool finite = true;
    for (int row = 0; row < TILE; row++)
        for (int i = lane_id(); i < SLICE / 2; i += WARP) {
            const u32 two = reinterpret_cast<const u32 *>(values + row * STRIDE)[i];
            constexpr u32 low = Operand::INFINITE, high = low << 16;
            finite &= (two & low) != low && (two & high) != high;
        }
    return ballot(!finite) == 0;
}
