// Values of 4 bits that stand for 16 levels.
#pragma once
#include "device.cuh"

// The levels of the low and the high nibbles of 4 bytes. The parameters hold four levels each, the
// first in the lowest byte.
template <u32 L0, u32 L4, u32 L8, u32 L12>
DEVICE void levels(u32 nibbles, u32 &low, u32 &high) {
    const u32 is_high = 0x32103210u | (nibbles & 0x88888888u) >> 1;  // takes the second four bytes
    const u32 low_bits = nibbles & 0x77777777u;
    u32 found[2];  // of the first 4 nibbles, of the others
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 at = low_bits >> (16 * i);
        found[i] = byte_perm(byte_perm(L0, L4, at), byte_perm(L8, L12, at), is_high >> (16 * i));
    }
    low = byte_perm(found[0], found[1], 0x6420);
    high = byte_perm(found[0], found[1], 0x7531);
}
