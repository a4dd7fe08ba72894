// Single elements of rows of types with grids, as dequantize.cuh.
#pragma once
#include "signs.cuh"
#include "tables.cuh"

DEVICE float f16_at(const u8 *at) { return f16_to_f32(*reinterpret_cast<const u16 *>(at)); }
DEVICE u32 u16_at(const u8 *at) { return *reinterpret_cast<const u16 *>(at); }
DEVICE u32 u32_at(const u8 *at) { return u16_at(at) | u16_at(at + 2) << 16; }

// Bits 4 * i .. 4 * i + 3.
DEVICE u32 nibble_at(const u8 *at, int i) { return at[i / 2] >> 4 * (i & 1) & 15; }

// 1 + 2 * scale
DEVICE float odd(u32 scale) { return static_cast<float>(1 + 2 * scale); }

// Value i of a grid's row of 4 or 8 values.
DEVICE int value_of(u64 row, int i) { return static_cast<int>(row >> 8 * i & 255); }

DEVICE float signed_value(int value, u32 signs, int i) {
    return static_cast<float>(signs >> i & 1 ? -value : value);
}

struct IQ2_XXS {
    static constexpr int SIZE = 256, BYTES = 66;
    static DEVICE float load(const u8 *block, int i) {
        const u8 *own = block + 2 + 8 * (i / 32);
        const int group = i / 8 % 4;
        const u32 word = u32_at(own + 4);
        const float d = f16_at(block) * odd(word >> 28) * 0.125f;
        return d * signed_value(value_of(GRID_IQ2_XXS[own[group]], i % 8),
                                even_signs(word >> 7 * group), i % 8);
    }
};

struct IQ2_XS {
    static constexpr int SIZE = 256, BYTES = 74;
    static DEVICE float load(const u8 *block, int i) {
        const u32 both = u16_at(block + 2 + 2 * (i / 8));
        const float d = f16_at(block) * odd(nibble_at(block + 66, i / 16)) * 0.125f;
        return d * signed_value(value_of(GRID_IQ2_XS[both & 511], i % 8), even_signs(both >> 9),
                                i % 8);
    }
};

struct IQ2_S {
    static constexpr int SIZE = 256, BYTES = 82;
    static DEVICE float load(const u8 *block, int i) {
        const int group = i / 8, high = block[66 + i / 32] >> 2 * (group % 4) & 3;
        const float d = f16_at(block) * odd(nibble_at(block + 74, i / 16)) * 0.125f;
        return d * signed_value(value_of(GRID_IQ2_S[block[2 + group] | high << 8], i % 8),
                                block[34 + group], i % 8);
    }
};

struct IQ3_XXS {
    static constexpr int SIZE = 256, BYTES = 98;
    static DEVICE float load(const u8 *block, int i) {
        const u32 word = u32_at(block + 66 + 4 * (i / 32));
        const float d = f16_at(block) * odd(word >> 28) * 0.25f;
        return d * signed_value(value_of(GRID_IQ3_XXS[block[2 + i / 4]], i % 4),
                                even_signs(word >> 7 * (i / 8 % 4)), i % 8);
    }
};

struct IQ3_S {
    static constexpr int SIZE = 256, BYTES = 110;
    static DEVICE float load(const u8 *block, int i) {
        const int quad = i / 4, high = block[66 + quad / 8] >> quad % 8 & 1;
        const float d = f16_at(block) * odd(nibble_at(block + 106, i / 32));
        return d * signed_value(value_of(GRID_IQ3_S[block[2 + quad] | high << 8], i % 4),
                                block[74 + i / 8], i % 8);
    }
};

// Value i of the group, -1, 0 or 1.
DEVICE float ternary_value(int index, int i) {
    return static_cast<float>(value_of(GRID_IQ1_S[index], i) - 1);
}

struct IQ1_S {
    static constexpr int SIZE = 256, BYTES = 50;
    static DEVICE float load(const u8 *block, int i) {
        const u32 high = u16_at(block + 34 + 2 * (i / 32)), top = high >> 3 * (i / 8 % 4) & 7;
        const float shift = high & 0x8000 ? -0.125f : 0.125f;
        return f16_at(block) * odd(high >> 12 & 7) *
               (ternary_value(block[2 + i / 8] | top << 8, i % 8) + shift);
    }
};

struct IQ1_M {
    static constexpr int SIZE = 256, BYTES = 56;
    static DEVICE float load(const u8 *block, int i) {
        const u8 *scales = block + 48;
        u32 d = 0;
        for (int j = 0; j < 4; j++) d |= u16_at(scales + 2 * j) >> 12 << 4 * j;
        const u32 high = nibble_at(block + 32, i / 8);
        const u32 scale = u16_at(scales + 2 * (i / 64)) >> 3 * (i / 16 % 4) & 7;
        const float shift = high & 8 ? -0.125f : 0.125f;
        return f16_to_f32(static_cast<u16>(d)) * odd(scale) *
               (ternary_value(block[i / 8] | (high & 7) << 8, i % 8) + shift);
    }
};
