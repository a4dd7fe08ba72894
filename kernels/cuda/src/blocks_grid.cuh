// Types with grids (blocks.cuh): an index of 8 to 11 bits stands for 4 or 8 values.
#pragma once
#include "blocks.cuh"
#include "signs.cuh"

// A copy of a grid in shared memory for each block: the lanes of a warp read 32 places at once, which
// takes many cycles in global memory.
__shared__ u64 own_iq2_xxs[256], own_iq2_xs[512], own_iq2_s[1024], own_iq1_s[2048];
__shared__ u32 own_iq3_xxs[256], own_iq3_s[512];

template <class T, int N> DEVICE void copy_grid(T (&to)[N], const T (&from)[N]) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) to[i] = from[i];
}

// Of the 8 values of a group, a thread has 4: group t / 2 of 4 in its low word, with t = 0..3,
// group 2 + t / 2 in its high word.
DEVICE u32 half_of_group(u64 values, int t) { return static_cast<u32>(values >> 32 * (t & 1)); }
DEVICE u32 signed_half(u64 values, u32 signs, int t) {
    return with_signs(half_of_group(values, t), signs >> 4 * (t & 1));
}

// 1 + 2 * scale of values 0..15 and 16..31, from scales of 4 bits in a byte.
DEVICE void odd_scales(u32 both, int &first, int &second) {
    first = static_cast<int>(1 + 2 * (both & 15));
    second = static_cast<int>(1 + 2 * (both >> 4));
}

DEVICE float odd(u32 scale) { return static_cast<float>(1 + 2 * scale); }

// d; for each block 4 indices, 4 times 7 signs, and 4 bits of scale.
struct IQ2_XXS : Plain {
    static constexpr int VALUES = 256;
    static constexpr int BYTES = 66;
    static constexpr bool HAS_GRID = true;

    static DEVICE void prepare() { copy_grid(own_iq2_xxs, GRID_IQ2_XXS); }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        const u32 indices = at.word(2 + 8 * b), signs = at.word(6 + 8 * b);
        const int g = t / 2;
        low = signed_half(own_iq2_xxs[indices >> 8 * g & 255], even_signs(signs >> 7 * g), t);
        high = signed_half(own_iq2_xxs[indices >> (8 * g + 16) & 255],
                           even_signs(signs >> (7 * g + 14)), t);
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        w_scale = at.f16(0) * 0.125f * odd(at.half(8 + 8 * b) >> 12);
        w_min = 0.0f;
    }
};

// d; 9 bits of index and 7 of signs for each 8 values; scales of 4 bits.
struct IQ2_XS : Plain {
    static constexpr int VALUES = 256;
    static constexpr int SCALES = 66;
    static constexpr int BYTES = 74;
    static constexpr bool HAS_SUB_SCALES = true;
    static constexpr bool HAS_GRID = true;

    static DEVICE void prepare() { copy_grid(own_iq2_xs, GRID_IQ2_XS); }

    template <class B> static DEVICE u32 word(const B &at, int group, int t) {
        const u32 both = at.half(2 + 2 * group);
        return signed_half(own_iq2_xs[both & 511], even_signs(both >> 9), t);
    }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        low = word(at, 4 * b + t / 2, t);
        high = word(at, 4 * b + t / 2 + 2, t);
    }

    template <class B> static DEVICE void scales(const B &at, int, float &w_scale, float &w_min) {
        w_scale = at.f16(0) * 0.125f;
        w_min = 0.0f;
    }

    template <class B> static DEVICE void sub_scales(const B &at, int b, int &first, int &second) {
        odd_scales(at.byte(SCALES + b), first, second);
    }
};

// d, low bits of indices, signs, 2 high bits of indices, scales of 4 bits.
struct IQ2_S : Plain {
    static constexpr int VALUES = 256;
    static constexpr int QS = 2;
    static constexpr int SIGNS = 34;
    static constexpr int QH = 66;
    static constexpr int SCALES = 74;
    static constexpr int BYTES = 82;
    static constexpr bool HAS_SUB_SCALES = true;
    static constexpr bool HAS_GRID = true;

    static DEVICE void prepare() { copy_grid(own_iq2_s, GRID_IQ2_S); }

    // Not in a function for both words: on sm_120, that spills registers.
    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        const int g = t / 2;
        low = signed_half(own_iq2_s[at.byte(QS + 4 * b + g) |
                                    (at.byte(QH + b) << (8 - 2 * g) & 0x300)],
                          at.byte(SIGNS + 4 * b + g), t);
        high = signed_half(own_iq2_s[at.byte(QS + 4 * b + g + 2) |
                                     (at.byte(QH + b) << (4 - 2 * g) & 0x300)],
                           at.byte(SIGNS + 4 * b + g + 2), t);
    }

    template <class B> static DEVICE void scales(const B &at, int, float &w_scale, float &w_min) {
        w_scale = at.f16(0) * 0.125f;
        w_min = 0.0f;
    }

    template <class B> static DEVICE void sub_scales(const B &at, int b, int &first, int &second) {
        odd_scales(at.byte(SCALES + b), first, second);
    }
};

// d; indices of 4 values; for each block 4 times 7 signs and 4 bits of scale.
struct IQ3_XXS : Plain {
    static constexpr int VALUES = 256;
    static constexpr int SIGNS = 66;
    static constexpr int BYTES = 98;
    static constexpr bool HAS_GRID = true;

    static DEVICE void prepare() { copy_grid(own_iq3_xxs, GRID_IQ3_XXS); }

    template <class B> static DEVICE u32 word(const B &at, int b, int quad, u32 signs) {
        const u32 own = even_signs(signs >> 7 * (quad / 2)) >> 4 * (quad & 1);
        return with_signs(own_iq3_xxs[at.byte(2 + 8 * b + quad)], own);
    }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        const u32 signs = at.word(SIGNS + 4 * b);
        low = word(at, b, t, signs);
        high = word(at, b, 4 + t, signs);
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        w_scale = at.f16(0) * 0.25f * odd(at.half(SIGNS + 2 + 4 * b) >> 12);
        w_min = 0.0f;
    }
};

// d, low bits of indices of 4 values, their high bits, signs, scales of 4 bits.
struct IQ3_S : Plain {
    static constexpr int VALUES = 256;
    static constexpr int QS = 2;
    static constexpr int QH = 66;
    static constexpr int SIGNS = 74;
    static constexpr int SCALES = 106;
    static constexpr int BYTES = 110;
    static constexpr bool HAS_GRID = true;

    static DEVICE void prepare() { copy_grid(own_iq3_s, GRID_IQ3_S); }

    template <class B> static DEVICE u32 word(const B &at, int b, int quad) {
        const u32 high = at.byte(QH + b) >> quad & 1;
        const u32 index = at.byte(QS + 8 * b + quad) | high << 8;
        const u32 signs = at.byte(SIGNS + 4 * b + quad / 2);
        return with_signs(own_iq3_s[index], signs >> 4 * (quad & 1));
    }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        low = word(at, b, t);
        high = word(at, b, 4 + t);
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        w_scale = at.f16(0) * odd(at.byte(SCALES + b / 2) >> 4 * (b & 1) & 15);
        w_min = 0.0f;
    }
};

// d, low bits of indices; for each block 4 times 3 high bits, 3 of scale, and the sign of a shift by
// 1/8. The grid's values are -1, 0 and 1; tables.cuh has 1 more.
struct IQ1_S : Plain {
    static constexpr int VALUES = 256;
    static constexpr int QS = 2;
    static constexpr int QH = 34;
    static constexpr int BYTES = 50;
    static constexpr bool HAS_MIN = true;
    static constexpr int OFFSET = 1;
    static constexpr bool HAS_GRID = true;

    static DEVICE void prepare() { copy_grid(own_iq1_s, GRID_IQ1_S); }

    template <class B> static DEVICE u32 word(const B &at, int b, int group, int t) {
        const u32 high = at.half(QH + 2 * b) >> 3 * group & 7;
        return half_of_group(own_iq1_s[at.byte(QS + 4 * b + group) | high << 8], t);
    }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        low = word(at, b, t / 2, t);
        high = word(at, b, t / 2 + 2, t);
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        const u32 high = at.half(QH + 2 * b);
        w_scale = at.f16(0) * odd(high >> 12 & 7);
        w_min = w_scale * (high & 0x8000 ? -0.125f : 0.125f);
    }
};

// Low bits of indices; 3 high bits and the sign of a shift by 1/8 for each 8 values; scales of 3
// bits, with 4 bits of d above each 4 of them.
struct IQ1_M : Plain {
    static constexpr int VALUES = 256;
    static constexpr int QH = 32;
    static constexpr int SCALES = 48;
    static constexpr int BYTES = 56;
    static constexpr bool HAS_SUB_SCALES = true;
    static constexpr int OFFSET = 9;
    static constexpr bool HAS_GRID = true;

    static DEVICE void prepare() { copy_grid(own_iq1_s, GRID_IQ1_S); }

    // 8 * (grid + shift) + 9
    template <class B> static DEVICE u32 word(const B &at, int b, int group, int t) {
        const u32 high = at.byte(QH + 2 * b + group / 2) >> 4 * (group & 1);
        const u32 index = at.byte(4 * b + group) | (high & 7) << 8;
        const u32 shift = high & 8 ? 0 : 0x02020202u;
        return half_of_group(own_iq1_s[index], t) << 3 | shift;
    }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        low = word(at, b, t / 2, t);
        high = word(at, b, t / 2 + 2, t);
    }

    template <class B> static DEVICE void scales(const B &at, int, float &w_scale, float &w_min) {
        const u32 first = at.word(SCALES), second = at.word(SCALES + 4);
        const u32 d = (first >> 12 & 0xf) | (first >> 24 & 0xf0) | (second >> 4 & 0xf00) |
                      (second >> 16 & 0xf000);
        w_scale = f16_to_f32(static_cast<u16>(d)) * 0.125f;
        w_min = 0.0f;
    }

    template <class B> static DEVICE void sub_scales(const B &at, int b, int &first, int &second) {
        const u32 both = at.half(SCALES + 2 * (b / 2)) >> 6 * (b & 1);
        first = static_cast<int>(1 + 2 * (both & 7));
        second = static_cast<int>(1 + 2 * (both >> 3 & 7));
    }
};
