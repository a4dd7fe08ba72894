// Element-wise ops on one tensor, with activations and masks.
//
// A thread computes a unit at a time, in float32. An element's bits depend on its own value and
// place alone. Every unit is read before it is written, so the node may overwrite its source.
#include "activations.cuh"
#include "units.cuh"

constexpr int THREADS = 256;

// FLAT: both tensors are contiguous, with one shape. SCALAR, SECOND_SCALAR: the op's parameters.
enum { FLAT, TYPE, SCALAR, SECOND_SCALAR };

// Apply f(x, place of the unit, index in the unit) to each element.
template <typename F> DEVICE void map(const Params &p, F f) {
    const Tensor &out = p.t[0], &a = p.t[1];
    const int type = static_cast<int>(p.param[TYPE].i);
    const Units units = units_of(out, p.param[FLAT].i);
    for (u32 u = thread_of_grid(); u < units.count; u += threads_of_grid()) {
        Place at = place_of(units, u);
        float x[UNIT];
        load_unit(type, row_at(a, at) + at.i0 * a.nb[0], a.nb[0], at.n, x);
#pragma unroll
        for (int k = 0; k < UNIT; k++) x[k] = f(x[k], at, k);
        store_unit(type, row_at(out, at) + at.i0 * out.nb[0], out.nb[0], at.n, x);
    }
}

DEVICE float scalar(const Params &p, int i) { return static_cast<float>(p.param[i].f); }

KERNEL(scale_float, THREADS, 4) {
    float a = scalar(p, SCALAR), b = scalar(p, SECOND_SCALAR);
    map(p, [=](float x, const Place &, int) { return x * a + b; });
}

KERNEL(sqr_float, THREADS, 4) {
    map(p, [](float x, const Place &, int) { return x * x; });
}

KERNEL(sqrt_float, THREADS, 4) {
    map(p, [](float x, const Place &, int) { return sqrtf(x); });
}

KERNEL(log_float, THREADS, 4) {
    map(p, [](float x, const Place &, int) { return logf(x); });
}

KERNEL(clamp_float, THREADS, 4) {  // NaN compares false and stays
    float low = scalar(p, SCALAR), high = scalar(p, SECOND_SCALAR);
    map(p, [=](float x, const Place &, int) { return x < low ? low : x > high ? high : x; });
}

KERNEL(fill_float, THREADS, 4) {
    float value = scalar(p, SCALAR);
    map(p, [=](float, const Place &, int) { return value; });
}

KERNEL(unary_float, THREADS, 4) {
    int op = static_cast<int>(p.param[SCALAR].i);
    float s[4];
    for (int k = 0; k < 4; k++) s[k] = scalar(p, SECOND_SCALAR + k);
    map(p, [&](float x, const Place &, int) { return unary(op, x, s); });
}

// Parameters: how many columns the first row keeps, and the value of the masked ones.
KERNEL(diag_mask_float, THREADS, 4) {
    i64 n_past = p.param[SCALAR].i;
    float value = scalar(p, SECOND_SCALAR);
    map(p, [=](float x, const Place &at, int k) { return at.i0 + k > n_past + at.i1 ? value : x; });
}
