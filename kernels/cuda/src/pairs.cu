// Element-wise ops on two tensors, with gated units.
//
// A thread computes a unit at a time, in float32. An element's bits depend on its operands alone.
// Every unit is read before it is written, so the node may overwrite a source.
#include "activations.cuh"
#include "units.cuh"

constexpr int THREADS = 256;

// FLAT: tensors are contiguous, with one shape. SECOND: the second operand's tensor. OFFSET,
// SECOND_OFFSET: where the operands begin in their rows, in bytes. GATE: glu_float's parameters begin.
enum { FLAT, TYPE, SECOND_TYPE, SECOND, OFFSET, SECOND_OFFSET, GATE };

// Load a unit of a row that is repeated to `n0` elements.
DEVICE void load_repeated(int type, const Tensor &t, const char *row, const Place &at, u32 n0,
                          float (&v)[UNIT]) {
    u32 n = static_cast<u32>(t.ne[0]);
    if (n == n0 || n == 1) {
        i64 stride = n == n0 ? t.nb[0] : 0;
        load_unit(type, row + at.i0 * stride, stride, at.n, v);
    } else {
#pragma unroll
        for (int k = 0; k < UNIT; k++)
            v[k] = k < at.n ? load_value(type, row + (at.i0 + k) % n * t.nb[0]) : 0.0f;
    }
}

// Apply f(x, y) to each pair of elements.
template <typename F> DEVICE void pair(const Params &p, F f) {
    const Tensor &out = p.t[0], &a = p.t[1], &b = p.t[p.param[SECOND].i];
    const int type = static_cast<int>(p.param[TYPE].i);
    const int second = static_cast<int>(p.param[SECOND_TYPE].i);
    const Units units = units_of(out, p.param[FLAT].i);
    // b's row repeats, unless b is the other half of a's rows
    const bool repeats = p.param[SECOND].i == 2 && !p.param[FLAT].i;
    for (u32 u = thread_of_grid(); u < units.count; u += threads_of_grid()) {
        Place at = place_of(units, u);
        float x[UNIT], y[UNIT];
        load_unit(type, row_at(a, at) + p.param[OFFSET].i + at.i0 * a.nb[0], a.nb[0], at.n, x);
        const char *row = row_at(b, at) + p.param[SECOND_OFFSET].i;
        if (repeats)
            load_repeated(second, b, row, at, units.n0, y);
        else
            load_unit(second, row + at.i0 * b.nb[0], b.nb[0], at.n, y);
#pragma unroll
        for (int k = 0; k < UNIT; k++) x[k] = f(x[k], y[k]);
        store_unit(type, row_at(out, at) + at.i0 * out.nb[0], out.nb[0], at.n, x);
    }
}

KERNEL(add_float, THREADS, 4) {
    pair(p, [](float x, float y) { return x + y; });
}

KERNEL(sub_float, THREADS, 4) {
    pair(p, [](float x, float y) { return x - y; });
}

KERNEL(mul_float, THREADS, 4) {
    pair(p, [](float x, float y) { return x * y; });
}

KERNEL(div_float, THREADS, 4) {
    pair(p, [](float x, float y) { return x / y; });
}

// Tensor 3 (int32) selects the second operand's row.
KERNEL(add_id_float, THREADS, 4) {
    const Tensor &out = p.t[0], &a = p.t[1], &b = p.t[2], &ids = p.t[3];
    const int type = static_cast<int>(p.param[TYPE].i);
    const int second = static_cast<int>(p.param[SECOND_TYPE].i);
    const Units units = units_of(out, false);
    for (u32 u = thread_of_grid(); u < units.count; u += threads_of_grid()) {
        Place place = place_of(units, u);
        int index = *reinterpret_cast<const int *>(at(ids, place.i1 * ids.nb[0], place.i2, 0, 0));
        if (index < 0 || index >= b.ne[1]) {
            if (place.i0 == 0) fail(p, index, b.ne[1]);
            continue;
        }
        float x[UNIT], y[UNIT];
        load_unit(type, row_at(a, place) + place.i0 * a.nb[0], a.nb[0], place.n, x);
        load_unit(second, at(b, place.i0 * b.nb[0], index, 0, 0), b.nb[0], place.n, y);
#pragma unroll
        for (int k = 0; k < UNIT; k++) x[k] += y[k];
        store_unit(type, row_at(out, place) + place.i0 * out.nb[0], out.nb[0], place.n, x);
    }
}

KERNEL(glu_float, THREADS, 4) {
    pair(p, [&](float x, float y) { return glu(p, GATE, x, y); });
}
