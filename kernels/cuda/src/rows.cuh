// A row that several threads share: a number of whole warps that depends on its length.
//
// Each thread has every `threads`-th unit of four elements. The order of a sum depends on the row's
// length alone. Up to 8 elements of each thread stay in registers; the rest of a longer row is read
// again.
#pragma once
#include "units.cuh"

constexpr int HELD = 2;           // units of a thread in registers
constexpr int MAX_THREADS = 1024;
constexpr int N_SUMMED = 16;      // units that a thread sums before it adds the sum to its total

struct Line {
    int n;        // elements
    int threads;  // threads that share the row: WARP, or the whole block
    int thread;   // index of this one
};

enum { THREADS };  // parameter of all row kernels: how many threads share a row

// The row of this warp or block; false if there is none.
DEVICE bool find_row(const Params &p, const Tensor &x, Line &line, i64 &r) {
    line.n = static_cast<int>(x.ne[0]);
    line.threads = static_cast<int>(p.param[THREADS].i);
    line.thread = static_cast<int>(threadIdx.x) % line.threads;
    i64 rows_of_block = static_cast<int>(blockDim.x) / line.threads;
    r = blockIdx.x * rows_of_block + static_cast<int>(threadIdx.x) / line.threads;
    return r < n_rows(x);
}

DEVICE float *floats(const Tensor &t, i64 r) { return reinterpret_cast<float *>(row_of(t, r)); }

struct Quad {
    float v[UNIT];
};

// The unit of the row from element `i` on, zeros past the end.
DEVICE Quad load_quad(const float *row, int i, int n) {
    Quad q;
    load_unit(TYPE_F32, reinterpret_cast<const char *>(row + i), 4, smaller(UNIT, n - i), q.v);
    return q;
}

DEVICE void store_quad(float *row, int i, int n, const Quad &q) {
    store_unit(TYPE_F32, reinterpret_cast<char *>(row + i), 4, smaller(UNIT, n - i), q.v);
}

DEVICE float total_of(const Quad &q) { return (q.v[0] + q.v[1]) + (q.v[2] + q.v[3]); }

// Call f(j, i) for each unit of this thread; `i` is its first element. The first units have j =
// 0 ... HELD - 1 and may stay in registers; all others have j = HELD.
template <typename F> DEVICE void each_unit(const Line &line, F f) {
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        int i = UNIT * (line.thread + j * line.threads);
        if (i < line.n) f(j, i);
    }
    for (int i = UNIT * (line.thread + HELD * line.threads); i < line.n; i += UNIT * line.threads)
        f(HELD, i);
}

// --- reductions over all threads of a row ---

DEVICE float infinity() { return as_float(0x7f800000); }

struct Sum {
    static DEVICE float none() { return 0.0f; }
    static DEVICE float warp(float v) { return warp_sum(v); }
};

struct Max {
    static DEVICE float none() { return -infinity(); }
    static DEVICE float warp(float v) { return warp_max(v); }
};

// Sum or Max of the threads' values. `shared` has one float for each warp, for this call alone.
template <typename Kind> DEVICE float of_all(const Line &line, float v, float *shared) {
    v = Kind::warp(v);
    if (line.threads == WARP) return v;
    if (lane_id() == 0) shared[warp_id()] = v;
    sync_block();
    return Kind::warp(lane_id() < line.threads / WARP ? shared[lane_id()] : Kind::none());
}

// The sum of value(j, i) over all units; value(j, i) is the sum over a unit's elements.
template <typename F> DEVICE float sum_of(const Line &line, float *shared, F value) {
    float total = 0.0f, part = 0.0f;
    int n = 0;
    each_unit(line, [&](int j, int i) {
        part += value(j, i);
        if (++n == N_SUMMED) total += part, part = 0.0f, n = 0;
    });
    return of_all<Sum>(line, total + part, shared);
}
