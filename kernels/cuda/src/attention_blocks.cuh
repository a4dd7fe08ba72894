// Blocks of 32 elements of a quantized pool: eight of them at a time as floats, with the bits of
// dequantize.cuh. Blocks are aligned to 2 bytes.
#pragma once
#include "levels.cuh"
#include "tables.cuh"

DEVICE u32 half_at(const char *at) { return *reinterpret_cast<const u16 *>(at); }
DEVICE float factor_at(const char *at) { return f16_to_f32(static_cast<u16>(half_at(at))); }

// The nibbles of elements `first` ... `first` + 7. The low nibbles are the first half of a block.
DEVICE void load_nibbles(int (&q)[8], const char *nibbles, int first) {
    const int shift = first < 16 ? 0 : 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 two = half_at(nibbles + first % 16 + 2 * i) >> shift;
        q[2 * i] = static_cast<int>(two & 15);
        q[2 * i + 1] = static_cast<int>(two >> 8 & 15);
    }
}

// Add the fifth bits.
DEVICE void add_fifth_bits(int (&q)[8], const char *bits, int first) {
    const u32 eight = half_at(bits + first / 16 * 2) >> (first % 16);
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] |= static_cast<int>(eight >> i & 1) << 4;
}

// Blocks with a factor, and numbers around 0.
template <bool HAS_FIFTH> struct SymmetricBlock {
    static constexpr int BYTES = HAS_FIFTH ? 22 : 18, HALF = HAS_FIFTH ? 16 : 8;

    static DEVICE void load(float (&v)[8], const char *block, int first) {
        const float d = factor_at(block);
        int q[8];
        load_nibbles(q, block + BYTES - 16, first);
        if (HAS_FIFTH) add_fifth_bits(q, block + 2, first);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = d * static_cast<float>(q[i] - HALF);
    }
};

// Blocks with a factor and a minimum.
template <bool HAS_FIFTH> struct RangeBlock {
    static constexpr int BYTES = HAS_FIFTH ? 24 : 20;

    static DEVICE void load(float (&v)[8], const char *block, int first) {
        const float d = factor_at(block), m = factor_at(block + 2);
        int q[8];
        load_nibbles(q, block + BYTES - 16, first);
        if (HAS_FIFTH) add_fifth_bits(q, block + 4, first);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = d * static_cast<float>(q[i]) + m;
    }
};

struct Q4_0 : SymmetricBlock<false> {};
struct Q5_0 : SymmetricBlock<true> {};
struct Q4_1 : RangeBlock<false> {};
struct Q5_1 : RangeBlock<true> {};

struct Q8_0 {
    static constexpr int BYTES = 34;

    static DEVICE void load(float (&v)[8], const char *block, int first) {
        const float d = factor_at(block);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const u32 two = half_at(block + 2 + first + 2 * i);
            v[2 * i] = static_cast<float>(static_cast<i8>(two)) * d;
            v[2 * i + 1] = static_cast<float>(static_cast<i8>(two >> 8)) * d;
        }
    }
};

// Blocks with a factor, and numbers of levels.
struct IQ4_NL {
    static constexpr int BYTES = 18;

    static DEVICE void load(float (&v)[8], const char *block, int first) {
        const float d = factor_at(block);
        const char *const nibbles = block + 2 + first % 16;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            u32 low, high;
            levels<IQ4_LEVELS_0, IQ4_LEVELS_4, IQ4_LEVELS_8, IQ4_LEVELS_12>(
                half_at(nibbles + 4 * i) | half_at(nibbles + 4 * i + 2) << 16, low, high);
            const u32 four = first < 16 ? low : high;
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[4 * i + j] = d * static_cast<float>(static_cast<i8>(four >> (8 * j)));
        }
    }
};
