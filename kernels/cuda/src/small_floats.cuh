// Floats of 4 and 8 bits, of the types MXFP4 and NVFP4 (kernels/quants/layouts.py).
#pragma once
#include "device.cuh"

// 2^(e - 128); subnormal for e < 2.
DEVICE float half_of_e8m0(u32 e) { return as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// Half of an unsigned E4M3; NaN is 0. F16 has these bits with an exponent that is 8 more.
DEVICE float half_of_ue4m3(u32 x) {
    return x == 0x7f ? 0.0f : f16_to_f32(static_cast<u16>((x & 0x7f) << 7)) * 128.0f;
}

// E2M1, doubled: the values of the low and the high nibbles of 4 bytes, as signed bytes.
DEVICE void e2m1_values(u32 nibbles, u32 &low, u32 &high) {
    const u32 negative = 0x32103210u | (nibbles & 0x88888888u) >> 1;
    u32 values[2];  // of the first 4 nibbles, of the others
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 at = nibbles >> (16 * i);
        const u32 plus = byte_perm(0x03020100u, 0x0c080604u, at);
        const u32 minus = byte_perm(0xfdfeff00u, 0xf4f8fafcu, at);
        values[i] = byte_perm(plus, minus, negative >> (16 * i));
    }
    low = byte_perm(values[0], values[1], 0x6420);
    high = byte_perm(values[0], values[1], 0x7531);
}
