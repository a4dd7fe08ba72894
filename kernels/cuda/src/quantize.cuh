// Form q8 of 256 values of a column (blocks.cuh). The bits of a block depend on its 32 values alone.
// Compiled with -DT=F32 (F16, BF16), the type of the column.
#pragma once
#include "blocks.cuh"

constexpr int N_VALUES = CHUNK / WARP;       // values of a thread
constexpr int QUAD = BLOCK / N_VALUES;       // threads of a block of values
constexpr float LARGEST = 127.0f;
constexpr float SMALLEST = 1e-30f;           // the inverse of a smaller scale may be infinite

DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

DEVICE int quantized(float x, float inverse) {
    return static_cast<int>(fminf(fmaxf(rintf(x * inverse), -LARGEST), LARGEST));
}

// Load values from `first` on of a row of k, zeros past its end.
DEVICE void load_values(float (&x)[N_VALUES], const char *row, i64 first, i64 k) {
    const T::stored *from = reinterpret_cast<const T::stored *>(row) + first;
    if (sizeof(T::stored) == 4 && reinterpret_cast<u64>(from) % 16 == 0 && first + N_VALUES <= k) {
        const float4 a = reinterpret_cast<const float4 *>(from)[0];
        const float4 b = reinterpret_cast<const float4 *>(from)[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < N_VALUES; i++) x[i] = first + i < k ? T::load(from + i) : 0.0f;
}

// A warp's chunk: the 8 values of this thread, and the scale and the sum of their block.
struct Quantized {
    uint2 values;
    float scale;
    int sum;

    // All lanes construct it together.
    DEVICE explicit Quantized(const float (&x)[N_VALUES]) : sum(0) {
        u32 largest = 0;  // as bits: NaN is larger than all numbers, so the block's scale is NaN
#pragma unroll
        for (int i = 0; i < N_VALUES; i++) largest = larger(largest, as_bits(x[i]) & 0x7fffffff);
        for (int mask = QUAD / 2; mask > 0; mask /= 2) {
            largest = larger(largest, shfl_xor(largest, mask));
        }
        scale = as_float(largest) / LARGEST;
        const float inverse = scale > SMALLEST ? 1.0f / scale : 0.0f;
        u32 words[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < N_VALUES; i++) {
            const int q = quantized(x[i], inverse);
            sum += q;
            words[i / 4] |= (static_cast<u32>(q) & 255) << (8 * (i % 4));
        }
        values = make_uint2(words[0], words[1]);
        for (int mask = QUAD / 2; mask > 0; mask /= 2) sum += shfl_xor(sum, mask);
    }

    DEVICE bool has_scale() const { return lane_id() % QUAD == 0; }  // for its block of values
};
