// Single elements of quantized rows as float32, for GET_ROWS and copies. Values have the bits of
// `gguf.quants`. Matrix products read whole blocks instead (blocks.cuh).
#pragma once
#include "dequantize_grid.cuh"
#include "small_floats.cuh"
#include "tables.cuh"
#include "units.cuh"

// Element `i` of a block of 32: the low nibbles are the first half.
DEVICE int nibble(const u8 *qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
DEVICE int fifth_bit(const u8 *qh, int i) { return (qh[i / 8] >> i % 8 & 1) << 4; }

struct Q4_0 {
    static constexpr int SIZE = 32, BYTES = 18;
    static DEVICE float load(const u8 *block, int i) {
        return f16_at(block) * (nibble(block + 2, i) - 8);
    }
};

struct Q4_1 {
    static constexpr int SIZE = 32, BYTES = 20;
    static DEVICE float load(const u8 *block, int i) {
        return f16_at(block) * nibble(block + 4, i) + f16_at(block + 2);
    }
};

struct Q5_0 {
    static constexpr int SIZE = 32, BYTES = 22;
    static DEVICE float load(const u8 *block, int i) {
        return f16_at(block) * ((nibble(block + 6, i) | fifth_bit(block + 2, i)) - 16);
    }
};

struct Q5_1 {
    static constexpr int SIZE = 32, BYTES = 24;
    static DEVICE float load(const u8 *block, int i) {
        int q = nibble(block + 8, i) | fifth_bit(block + 4, i);
        return f16_at(block) * q + f16_at(block + 2);
    }
};

struct Q8_0 {
    static constexpr int SIZE = 32, BYTES = 34;
    static DEVICE float load(const u8 *block, int i) {
        return f16_at(block) * static_cast<i8>(block[2 + i]);
    }
};

// The level of one nibble.
DEVICE int iq4_level(int nibble) {
    u32 low, high;
    levels<IQ4_LEVELS_0, IQ4_LEVELS_4, IQ4_LEVELS_8, IQ4_LEVELS_12>(nibble, low, high);
    return static_cast<i8>(low & 255);
}

struct IQ4_NL {
    static constexpr int SIZE = 32, BYTES = 18;
    static DEVICE float load(const u8 *block, int i) {
        return f16_at(block) * iq4_level(nibble(block + 2, i));
    }
};

struct IQ4_XS {
    static constexpr int SIZE = 256, BYTES = 136;
    static DEVICE float load(const u8 *block, int i) {
        const int part = i / 32, low = block[4 + part / 2] >> 4 * (part % 2) & 15;
        const int scale = (low | (block[2 + part / 4] >> 2 * (part % 4) & 3) << 4) - 32;
        return f16_at(block) * scale * iq4_level(nibble(block + 8 + 16 * part, i % 32));
    }
};

DEVICE int e2m1(int nibble) {
    u32 low, high;
    e2m1_values(nibble, low, high);
    return static_cast<i8>(low & 255);
}

struct MXFP4 {
    static constexpr int SIZE = 32, BYTES = 17;
    static DEVICE float load(const u8 *block, int i) {
        return half_of_e8m0(block[0]) * e2m1(nibble(block + 1, i));
    }
};

struct NVFP4 {
    static constexpr int SIZE = 64, BYTES = 36;
    static DEVICE float load(const u8 *block, int i) {
        const int byte = block[4 + i / 16 * 8 + i % 8];
        return half_of_ue4m3(block[i / 16]) * e2m1(i % 16 < 8 ? byte & 15 : byte >> 4);
    }
};

// Six-bit scales and minima of eight parts of 32 values, in 12 bytes (Q4_K, Q5_K).
DEVICE int scale_of(const u8 *scales, int part) {
    if (part < 4) return scales[part] & 63;
    return (scales[part + 4] & 15) | (scales[part - 4] >> 6) << 4;
}

DEVICE int min_of(const u8 *scales, int part) {
    if (part < 4) return scales[part + 4] & 63;
    return scales[part + 4] >> 4 | (scales[part] >> 6) << 4;
}

// Value `q` of a part, with the part's scale and minimum.
DEVICE float scaled(const u8 *block, int part, int q) {
    float d = f16_at(block) * scale_of(block + 4, part);
    float m = f16_at(block + 2) * min_of(block + 4, part);
    return d * q - m;
}

struct Q4_K {
    static constexpr int SIZE = 256, BYTES = 144;
    static DEVICE float load(const u8 *block, int i) {
        int part = i / 32, byte = block[16 + i / 64 * 32 + i % 32];
        return scaled(block, part, part % 2 ? byte >> 4 : byte & 15);
    }
};

struct Q5_K {
    static constexpr int SIZE = 256, BYTES = 176;
    static DEVICE float load(const u8 *block, int i) {
        int part = i / 32, byte = block[48 + i / 64 * 32 + i % 32];
        int high = block[16 + i % 32] >> part & 1;
        return scaled(block, part, (part % 2 ? byte >> 4 : byte & 15) | high << 4);
    }
};

struct Q6_K {
    static constexpr int SIZE = 256, BYTES = 210;
    static DEVICE float load(const u8 *block, int i) {
        int half = i / 128, rest = i % 128;
        int byte = block[64 * half + rest % 64];
        int high = block[128 + 32 * half + rest % 32] >> 2 * (rest / 32) & 3;
        int q = ((rest < 64 ? byte & 15 : byte >> 4) | high << 4) - 32;
        float d = f16_at(block + 208) * static_cast<i8>(block[192 + i / 16]);
        return d * q;
    }
};

// Element `i` of 256 with 2 bits each.
DEVICE int two_bits(const u8 *qs, int i) { return qs[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3; }

struct Q2_K {
    static constexpr int SIZE = 256, BYTES = 84;
    static DEVICE float load(const u8 *block, int i) {
        const int both = block[i / 16];
        const float d = f16_at(block + 80) * (both & 15), m = f16_at(block + 82) * (both >> 4);
        return d * two_bits(block + 16, i) - m;
    }
};

struct Q3_K {
    static constexpr int SIZE = 256, BYTES = 110;
    static DEVICE float load(const u8 *block, int i) {
        const u8 *scales = block + 96;
        const int j = i / 16, low = scales[j % 8] >> 4 * (j / 8) & 15;
        const int scale = (low | (scales[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
        const int third = block[i % 32] >> i / 32 & 1;
        return f16_at(block + 108) * scale * ((two_bits(block + 32, i) | third << 2) - 4);
    }
};

struct TQ2_0 {
    static constexpr int SIZE = 256, BYTES = 66;
    static DEVICE float load(const u8 *block, int i) {
        return f16_at(block + 64) * (two_bits(block, i) - 1);
    }
};

struct TQ1_0 {
    static constexpr int SIZE = 256, BYTES = 54;
    // Digit n of the fraction q / 256 in base 3.
    static DEVICE int digit(int q, int n) {
        for (; n > 0; n--) q = q * 3 & 255;
        return q * 3 >> 8;
    }
    static DEVICE float load(const u8 *block, int i) {
        const int rest = i - 160, last = i - 240;
        const int q = i < 160    ? digit(block[i % 32], i / 32)
                      : i < 240 ? digit(block[32 + rest % 16], rest / 16)
                                : digit(block[48 + last % 4], last / 4);
        return f16_at(block + 52) * (q - 1);
    }
};

// Load `n` elements from element `i` of a row on; all are in one block.
template <typename Q> DEVICE void load_quantized(const char *row, u32 i, int n, float (&v)[UNIT]) {
    const u8 *block = reinterpret_cast<const u8 *>(row) + static_cast<i64>(i / Q::SIZE) * Q::BYTES;
#pragma unroll
    for (int k = 0; k < UNIT; k++)
        v[k] = k < n ? Q::load(block, static_cast<int>(i % Q::SIZE) + k) : 0.0f;
}

// Like load_quantized, of any readable type; other elements are `nb0` bytes apart.
DEVICE void load_any(int type, const char *row, u32 i, i64 nb0, int n, float (&v)[UNIT]) {
    switch (type) {
        case TYPE_Q4_0: load_quantized<Q4_0>(row, i, n, v); break;
        case TYPE_Q4_1: load_quantized<Q4_1>(row, i, n, v); break;
        case TYPE_Q5_0: load_quantized<Q5_0>(row, i, n, v); break;
        case TYPE_Q5_1: load_quantized<Q5_1>(row, i, n, v); break;
        case TYPE_Q8_0: load_quantized<Q8_0>(row, i, n, v); break;
        case TYPE_IQ4_NL: load_quantized<IQ4_NL>(row, i, n, v); break;
        case TYPE_IQ4_XS: load_quantized<IQ4_XS>(row, i, n, v); break;
        case TYPE_MXFP4: load_quantized<MXFP4>(row, i, n, v); break;
        case TYPE_NVFP4: load_quantized<NVFP4>(row, i, n, v); break;
        case TYPE_Q4_K: load_quantized<Q4_K>(row, i, n, v); break;
        case TYPE_Q5_K: load_quantized<Q5_K>(row, i, n, v); break;
        case TYPE_Q6_K: load_quantized<Q6_K>(row, i, n, v); break;
        case TYPE_Q2_K: load_quantized<Q2_K>(row, i, n, v); break;
        case TYPE_Q3_K: load_quantized<Q3_K>(row, i, n, v); break;
        case TYPE_TQ1_0: load_quantized<TQ1_0>(row, i, n, v); break;
        case TYPE_TQ2_0: load_quantized<TQ2_0>(row, i, n, v); break;
        case TYPE_IQ1_S: load_quantized<IQ1_S>(row, i, n, v); break;
        case TYPE_IQ1_M: load_quantized<IQ1_M>(row, i, n, v); break;
        case TYPE_IQ2_XXS: load_quantized<IQ2_XXS>(row, i, n, v); break;
        case TYPE_IQ2_XS: load_quantized<IQ2_XS>(row, i, n, v); break;
        case TYPE_IQ2_S: load_quantized<IQ2_S>(row, i, n, v); break;
        case TYPE_IQ3_XXS: load_quantized<IQ3_XXS>(row, i, n, v); break;
        case TYPE_IQ3_S: load_quantized<IQ3_S>(row, i, n, v); break;
        default: load_unit(type, row + i * nb0, nb0, n, v);
    }
}
