// Floats of 4 and 8 bits, of the types MXFP4 and NVFP4 (kernels/quants/layouts.py).
#pragma once
#include "levels.cuh"

// 2^(e - 128); subnormal for e < 2.
DEVICE float half_of_e8m0(u32 e) { return as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// Half of an unsigned E4M3; NaN is 0. F16 has these bits with an exponent that is 8 more.
DEVICE float half_of_ue4m3(u32 x) {
    return x == 0x7f ? 0.0f : f16_to_f32(static_cast<u16>((x & 0x7f) << 7)) * 128.0f;
}

// E2M1, doubled: the values of the low and the high nibbles of 4 bytes, as signed bytes.
DEVICE void e2m1_values(u32 nibbles, u32 &low, u32 &high) {
    levels<0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu>(nibbles, low, high);
}
