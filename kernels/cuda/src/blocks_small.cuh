// Types of 256 values with 1 to 3 bits each and no grid (blocks.cuh).
#pragma once
#include "blocks.cuh"

// 2 bits of each value: 32 bytes for 128 values, bits 0..1 of byte i value i, bits 2..3 value 32 + i,
// and so on. `qs`: where the bytes of all 256 values begin.
template <class B> DEVICE void words_of_2_bits(const B &at, int qs, int b, int t, u32 &low, u32 &high) {
    const int begin = qs + BLOCK * (b / 4) + 4 * t, shift = 2 * (b & 3);
    low = at.word(begin) >> shift & 0x03030303u;
    high = at.word(begin + 16) >> shift & 0x03030303u;
}

// Scales and minima of 4 bits, then the values, then d and dmin.
struct Q2_K : Plain {
    static constexpr int VALUES = 256;
    static constexpr int QS = 16;
    static constexpr int D = 80;
    static constexpr int BYTES = 84;
    static constexpr bool HAS_MIN = true;
    static constexpr bool HAS_SUB_MINS = true;

    // Values times their scale: up to 45.
    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        const u32 both = at.half(2 * b);
        words_of_2_bits(at, QS, b, t, low, high);
        low *= both & 15;
        high *= both >> 8 & 15;
    }

    template <class B> static DEVICE void scales(const B &at, int, float &w_scale, float &w_min) {
        w_scale = at.f16(D);
        w_min = -at.f16(D + 2);
    }

    template <class B> static DEVICE void sub_mins(const B &at, int b, int &first, int &second) {
        const u32 both = at.half(2 * b);
        first = static_cast<int>(both >> 4 & 15);
        second = static_cast<int>(both >> 12);
    }
};

// Third bits, low bits, scales of 6 bits, d.
struct Q3_K : Plain {
    static constexpr int VALUES = 256;
    static constexpr int QS = 32;
    static constexpr int SCALES = 96;
    static constexpr int D = 108;
    static constexpr int BYTES = 110;
    static constexpr bool HAS_SUB_SCALES = true;

    // -4 in each byte if bit b of `thirds` is not set there, else 0.
    static DEVICE u32 without_third(u32 thirds, int b) {
        return (~(thirds >> b) & 0x01010101u) * 0xfcu;
    }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        words_of_2_bits(at, QS, b, t, low, high);
        low |= without_third(at.word(4 * t), b);
        high |= without_third(at.word(4 * t + 16), b);
    }

    template <class B> static DEVICE void scales(const B &at, int, float &w_scale, float &w_min) {
        w_scale = at.f16(D);
        w_min = 0.0f;
    }

    // Of scale j, the low 4 bits are half j / 8 of byte j % 8, the high 2 bits of byte 8 + j % 4.
    template <class B> static DEVICE void sub_scales(const B &at, int b, int &first, int &second) {
        const u32 low = at.half(SCALES + 2 * (b & 3)) >> 4 * (b / 4) & 0x0f0f;
        const u32 high = at.half(SCALES + 8 + 2 * (b & 1)) >> 2 * (b / 2) & 0x0303;
        const u32 both = low | high << 4;
        first = static_cast<int>(both & 255) - 32;
        second = static_cast<int>(both >> 8) - 32;
    }
};

// Values minus 1 have 2 bits; d.
struct TQ2_0 : Plain {
    static constexpr int VALUES = 256;
    static constexpr int D = 64;
    static constexpr int BYTES = 66;
    static constexpr int OFFSET = 1;

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        words_of_2_bits(at, 0, b, t, low, high);
    }

    template <class B> static DEVICE void scales(const B &at, int, float &w_scale, float &w_min) {
        w_scale = at.f16(D);
        w_min = 0.0f;
    }
};

// 5 values to a byte, in base 3, as the fraction byte / 256: 32 bytes with blocks 0 to 4, 16 bytes
// with 5 times 16 values, 4 bytes with the last 16; d.
struct TQ1_0 : Plain {
    static constexpr int VALUES = 256;
    static constexpr int QUADS = 32;
    static constexpr int QH = 48;
    static constexpr int D = 52;
    static constexpr int BYTES = 54;
    static constexpr int OFFSET = 1;

    static DEVICE u32 power_of_3(int n) {
        return n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    }

    // Digit n of two fractions, in bits 0..7 and 16..23.
    static DEVICE u32 digits_of_2(u32 fractions, int n) {
        return ((fractions * power_of_3(n) & 0x00ff00ffu) * 3) >> 8 & 0x00030003u;
    }
    static DEVICE u32 digits(u32 fractions, int n) {
        return digits_of_2(fractions & 0x00ff00ffu, n) |
               digits_of_2(fractions >> 8 & 0x00ff00ffu, n) << 8;
    }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        if (b < 5) {
            low = digits(at.word(4 * t), b);
            high = digits(at.word(16 + 4 * t), b);
        } else {
            const u32 quad = at.word(QUADS + 4 * t);
            low = digits(quad, 2 * (b - 5));
            high = b < 7 ? digits(quad, 2 * (b - 5) + 1) : digits(at.word(QH), t);
        }
    }

    template <class B> static DEVICE void scales(const B &at, int, float &w_scale, float &w_min) {
        w_scale = at.f16(D);
        w_min = 0.0f;
    }
};
