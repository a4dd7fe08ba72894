// Signs of the types with grids, a bit for each value.
#pragma once
#include "device.cuh"

// Four bytes above 0, negative where bits 0..3 of `signs` are set.
DEVICE u32 with_signs(u32 bytes, u32 signs) {
    const u32 ones = (signs & 15) * 0x00204081u & 0x01010101u;
    return (bytes ^ ones * 255) + ones;
}

// 8 signs from the low 7 bits: the eighth makes the number of negative signs even.
DEVICE u32 even_signs(u32 seven) { return (seven & 127) | (popcount(seven & 127) & 1) << 7; }
