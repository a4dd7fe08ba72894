// Units: up to four adjacent elements of a row. A contiguous, aligned unit is read and written at
// once, any other one by one. Also the element types by ggml's numbers. The type is a parameter, so
// all threads take the same branch. Knows no quantized type.
#pragma once
#include "device.cuh"

enum TypeId {
    TYPE_F32 = 0,
    TYPE_F16 = 1,
    TYPE_Q4_0 = 2,
    TYPE_Q4_1 = 3,
    TYPE_Q5_0 = 6,
    TYPE_Q5_1 = 7,
    TYPE_Q8_0 = 8,
    TYPE_Q2_K = 10,
    TYPE_Q3_K = 11,
    TYPE_Q4_K = 12,
    TYPE_Q5_K = 13,
    TYPE_Q6_K = 14,
    TYPE_IQ2_XXS = 16,
    TYPE_IQ2_XS = 17,
    TYPE_IQ3_XXS = 18,
    TYPE_IQ1_S = 19,
    TYPE_IQ4_NL = 20,
    TYPE_IQ3_S = 21,
    TYPE_IQ2_S = 22,
    TYPE_IQ4_XS = 23,
    TYPE_I32 = 26,
    TYPE_IQ1_M = 29,
    TYPE_BF16 = 30,
    TYPE_TQ1_0 = 34,
    TYPE_TQ2_0 = 35,
    TYPE_MXFP4 = 39,
    TYPE_NVFP4 = 40,
};

constexpr int UNIT = 4;

template <typename T> DEVICE T smaller(T a, T b) { return a < b ? a : b; }
template <typename T> DEVICE T larger(T a, T b) { return a < b ? b : a; }

// --- elements ---

DEVICE float load_value(int type, const char *at) {
    switch (type) {
        case TYPE_F32: return *reinterpret_cast<const float *>(at);
        case TYPE_F16: return F16::load(reinterpret_cast<const u16 *>(at));
        case TYPE_BF16: return BF16::load(reinterpret_cast<const u16 *>(at));
        default: return I32::load(reinterpret_cast<const int *>(at));
    }
}

DEVICE void store_value(int type, char *at, float v) {
    switch (type) {
        case TYPE_F32: *reinterpret_cast<float *>(at) = v; break;
        case TYPE_F16: F16::store(reinterpret_cast<u16 *>(at), v); break;
        case TYPE_BF16: BF16::store(reinterpret_cast<u16 *>(at), v); break;
        default: I32::store(reinterpret_cast<int *>(at), v);
    }
}

// --- units ---

DEVICE bool is_aligned(const void *at, int size) {
    return reinterpret_cast<u64>(at) % static_cast<u64>(size) == 0;
}

// True if a unit can be moved at once: four contiguous elements of `size` bytes, aligned.
DEVICE bool is_whole(const void *at, i64 nb0, int n, int size) {
    return n == UNIT && nb0 == size && is_aligned(at, UNIT * size);
}

DEVICE float half_of(int type, u32 bits) {
    u16 h = static_cast<u16>(bits);
    return type == TYPE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

DEVICE u32 halves_of(int type, float low, float high) {
    u32 a = type == TYPE_F16 ? f32_to_f16(low) : f32_to_bf16(low);
    u32 b = type == TYPE_F16 ? f32_to_f16(high) : f32_to_bf16(high);
    return a | b << 16;
}

// Read `n` elements from `at` on, `nb0` bytes apart; the rest of `v` becomes 0.
DEVICE void load_unit(int type, const char *at, i64 nb0, int n, float (&v)[UNIT]) {
    if (type == TYPE_F32 && is_whole(at, nb0, n, 4)) {
        float4 x = *reinterpret_cast<const float4 *>(at);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
    } else if ((type == TYPE_F16 || type == TYPE_BF16) && is_whole(at, nb0, n, 2)) {
        u64 x = *reinterpret_cast<const u64 *>(at);
#pragma unroll
        for (int k = 0; k < UNIT; k++) v[k] = half_of(type, static_cast<u32>(x >> (16 * k)));
    } else {
#pragma unroll
        for (int k = 0; k < UNIT; k++) v[k] = k < n ? load_value(type, at + k * nb0) : 0.0f;
    }
}

DEVICE void store_unit(int type, char *at, i64 nb0, int n, const float (&v)[UNIT]) {
    if (type == TYPE_F32 && is_whole(at, nb0, n, 4)) {
        *reinterpret_cast<float4 *>(at) = make_float4(v[0], v[1], v[2], v[3]);
    } else if ((type == TYPE_F16 || type == TYPE_BF16) && is_whole(at, nb0, n, 2)) {
        u64 low = halves_of(type, v[0], v[1]), high = halves_of(type, v[2], v[3]);
        *reinterpret_cast<u64 *>(at) = low | high << 32;
    } else {
#pragma unroll
        for (int k = 0; k < UNIT; k++)
            if (k < n) store_value(type, at + k * nb0, v[k]);
    }
}

// --- all units of a tensor; counts have 32 bits, the op tables reject larger tensors ---

// The units of rows of `n0` elements; a `flat` tensor is one row.
struct Units {
    u32 n0, per_row, n1, n2, count;
};

struct Place {
    u32 i0, i1, i2, i3;
    int n;  // elements of this unit
};

DEVICE Units units_of(const Tensor &t, bool flat) {
    Units s;
    s.n0 = static_cast<u32>(flat ? t.ne[0] * n_rows(t) : t.ne[0]);
    s.per_row = (s.n0 + UNIT - 1) / UNIT;
    s.n1 = static_cast<u32>(t.ne[1]), s.n2 = static_cast<u32>(t.ne[2]);
    s.count = flat ? s.per_row : s.per_row * static_cast<u32>(n_rows(t));
    return s;
}

DEVICE Place place_of(const Units &s, u32 u) {
    Place at = {UNIT * u, 0, 0, 0, UNIT};
    if (u >= s.per_row) {
        u32 r = u / s.per_row;
        at.i0 = UNIT * (u - r * s.per_row);
        at.i1 = r;
        if (r >= s.n1) {
            u32 r2 = r / s.n1;
            at.i1 = r - r2 * s.n1;
            at.i3 = r2 / s.n2;
            at.i2 = r2 - at.i3 * s.n2;
        }
    }
    if (at.i0 + UNIT > s.n0) at.n = static_cast<int>(s.n0 - at.i0);
    return at;
}

DEVICE u32 wrapped(u32 i, i64 n) {
    if (i < n) return i;
    return n == 1 ? 0 : i % static_cast<u32>(n);
}

// Address of a place's row in a tensor that repeats along dimensions 1, 2, 3.
DEVICE char *row_at(const Tensor &t, const Place &at) {
    return t.data + wrapped(at.i1, t.ne[1]) * t.nb[1] + wrapped(at.i2, t.ne[2]) * t.nb[2] +
           wrapped(at.i3, t.ne[3]) * t.nb[3];
}

// Index of this thread in the grid, and how many threads the grid has.
DEVICE u32 thread_of_grid() { return blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE u32 threads_of_grid() { return gridDim.x * blockDim.x; }
