// Norms and sums of rows. A norm may be fused with the residual's ADD before it and with the
// weight's MUL after it. Fused or not, one function computes a row, so the bits are the same.
#include "rows.cuh"

enum { EPS = THREADS + 1 };  // after the parameter of all row kernels

KERNEL(sum_rows_f32, MAX_THREADS, 1) {
    __shared__ float sums[WARP];
    Line line;
    i64 r;
    if (!find_row(p, p.t[1], line, r)) return;
    const float *x = floats(p.t[1], r);
    float sum = sum_of(line, sums, [&](int, int i) { return total_of(load_quad(x, i, line.n)); });
    if (line.thread == 0) *floats(p.t[0], r) = sum;
}

// Squared distances from the mean, 0 past the row's end.
DEVICE float squares_of(const Quad &q, float mean, int n) {
    Quad s;
#pragma unroll
    for (int k = 0; k < UNIT; k++) {
        float d = q.v[k] - mean;
        s.v[k] = k < n ? d * d : 0.0f;
    }
    return total_of(s);
}

// out = (x - mean) * factor * weight, with x = a + b; b and weight may be null. x is written to
// `sum`, unless it is null.
template <bool CENTERED> DEVICE void norm_row(const Params &p, const Line &line, const float *a,
                                             const float *b, float *sum, const float *weight,
                                             float *out) {
    __shared__ float sums[WARP], squares[WARP];
    const int n = line.n;
    auto load = [&](int i) {
        Quad q = load_quad(a, i, n);
        if (b) {
            Quad other = load_quad(b, i, n);
#pragma unroll
            for (int k = 0; k < UNIT; k++) q.v[k] += other.v[k];
        }
        return q;
    };
    Quad x[HELD] = {}, w[HELD] = {};
    each_unit(line, [&](int j, int i) {  // the weight is loaded now, to be there when it is needed
        Quad q = load(i);
        if (sum) store_quad(sum, i, n, q);
        if (j == HELD) return;
        x[j] = q;
        if (weight) w[j] = load_quad(weight, i, n);
    });
    auto quad = [&](int j, int i) { return j < HELD ? x[j] : load(i); };
    float mean = 0.0f;
    if (CENTERED)
        mean = sum_of(line, sums, [&](int j, int i) { return total_of(quad(j, i)); }) / n;
    float square = sum_of(line, squares, [&](int j, int i) {
        return squares_of(quad(j, i), mean, n - i);
    });
    float factor = 1.0f / sqrtf(square / n + static_cast<float>(p.param[EPS].f));
    each_unit(line, [&](int j, int i) {
        Quad q = quad(j, i);
#pragma unroll
        for (int k = 0; k < UNIT; k++) q.v[k] = (q.v[k] - mean) * factor;
        if (weight) {
            Quad by = j < HELD ? w[j] : load_quad(weight, i, n);
#pragma unroll
            for (int k = 0; k < UNIT; k++) q.v[k] *= by.v[k];
        }
        store_quad(out, i, n, q);
    });
}

// Tensors: the result, rows.
template <bool CENTERED> DEVICE void norm(const Params &p) {
    Line line;
    i64 r;
    if (!find_row(p, p.t[1], line, r)) return;
    norm_row<CENTERED>(p, line, floats(p.t[1], r), nullptr, nullptr, nullptr, floats(p.t[0], r));
}

// Tensors: the result, rows, the weight.
template <bool CENTERED> DEVICE void norm_mul(const Params &p) {
    Line line;
    i64 r;
    if (!find_row(p, p.t[1], line, r)) return;
    norm_row<CENTERED>(p, line, floats(p.t[1], r), nullptr, nullptr, floats(p.t[2], 0),
                      floats(p.t[0], r));
}

// Tensors: the result, the sum (or the result again, if no node reads the sum), two operands, the
// weight.
template <bool CENTERED> DEVICE void add_norm_mul(const Params &p) {
    Line line;
    i64 r;
    if (!find_row(p, p.t[2], line, r)) return;
    float *out = floats(p.t[0], r), *sum = floats(p.t[1], r);
    norm_row<CENTERED>(p, line, floats(p.t[2], r), floats(p.t[3], r), sum == out ? nullptr : sum,
                      floats(p.t[4], 0), out);
}

KERNEL(norm_f32, MAX_THREADS, 1) { norm<true>(p); }
KERNEL(rms_norm_f32, MAX_THREADS, 1) { norm<false>(p); }
KERNEL(norm_mul_f32, MAX_THREADS, 1) { norm_mul<true>(p); }
KERNEL(rms_norm_mul_f32, MAX_THREADS, 1) { norm_mul<false>(p); }
KERNEL(add_norm_mul_f32, MAX_THREADS, 1) { add_norm_mul<true>(p); }
KERNEL(add_rms_norm_mul_f32, MAX_THREADS, 1) { add_norm_mul<false>(p); }
