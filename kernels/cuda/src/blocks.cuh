// Blocks of quantized weights in GGUF's layout, and the arithmetic of their products. Every kernel
// takes the float steps in one order, so no batch and no kernel changes a bit.
//
// K is cut into chunks of 256 values, each of 8 blocks of 32. A chunk's sum starts at 0. Its blocks
// are added in ascending order by `accumulate`, each from the exact integer product of weights and
// column (form q8, below). Then total = total + sum, chunks ascending, from 0. Blocks beyond K are
// left out.
//
// A type reads one chunk of a row from `Bytes`:
//     BYTES             bytes of a chunk
//     VALUES            values of one GGUF block, 32, 64 or 256
//     words(at, b, t, low, high)   values 4t..4t+3 and 16+4t..16+4t+3 of block b, as bytes:
//                       the mma_s8_k32 operands of thread t of a quad, t = 0..3
//     scales(at, b, w_scale, w_min)
// and what differs from `Plain`. Layouts: kernels/quants/layouts.py. Types of 256 values with fewer
// than 4 bits are in blocks_small.cuh, types with grids in blocks_grid.cuh.
#pragma once

#include "levels.cuh"
#include "tables.cuh"
#include "small_floats.cuh"

constexpr int BLOCK = 32;          // values
constexpr int CHUNK = 256;         // values
constexpr int CHUNK_BLOCKS = CHUNK / BLOCK;

// --- columns of activations in form q8 (quantize.cu) ---
//
// i8 values[kp], float scales[kp / 32], int sums[kp / 32], 16-byte aligned. kp is K rounded up to
// whole chunks, padded with zeros. sums[i] is the sum of block i's integers.

DEVICE i64 q8_column_bytes(i64 kp) { return kp + kp / BLOCK * 8; }
DEVICE const i8 *q8_values(const char *column, i64) {
    return reinterpret_cast<const i8 *>(column);
}
DEVICE const float *q8_scales(const char *column, i64 kp) {
    return reinterpret_cast<const float *>(column + kp);
}
DEVICE const int *q8_sums(const char *column, i64 kp) {
    return reinterpret_cast<const int *>(column + kp + kp / BLOCK * 4);
}

// Matrix `number` of a batch of columns (tensor 2), counted over dimensions 2 and 3. Several may
// share a matrix of weights (tensor 1), which begins at `weights` bytes.
struct BatchMatrix {
    i64 i2 = 0, i3 = 0, weights = 0;

    DEVICE BatchMatrix(const Params &p, u32 number) {
        const Tensor &a = p.t[1], &x = p.t[2];
        const u32 n2 = static_cast<u32>(x.ne[2]), n3 = static_cast<u32>(x.ne[3]);
        if (n2 == 1 && n3 == 1) return;
        i2 = number % n2, i3 = number / n2;
        weights = i2 / (n2 / static_cast<u32>(a.ne[2])) * a.nb[2] +
                  i3 / (n3 / static_cast<u32>(a.ne[3])) * a.nb[3];
    }
};

// --- the float steps ---

// Add one block to a chunk's sum. `isum` and `a_sum` are integers below 2**24: exact as floats.
template <class Type>
DEVICE float accumulate(float s, float isum, float a_d, float a_sum, float w_scale, float w_min) {
    s = fmaf(w_scale * a_d, isum, s);
    if (Type::HAS_MIN) s = fmaf(w_min * a_d, a_sum, s);
    return s;
}

// --- bytes ---

// Bytes at a multiple of 2, or of 4 if ALIGNED; offsets are even. `any_word` and `byte` need neither.
template <bool ALIGNED> struct Bytes {
    const char *from;

    DEVICE u32 half(int offset) const {
        return *reinterpret_cast<const u16 *>(from + offset);
    }
    DEVICE u32 word(int offset) const {
        if (ALIGNED && (offset & 3) == 0) return *reinterpret_cast<const u32 *>(from + offset);
        return half(offset) | half(offset + 2) << 16;
    }
    DEVICE float f16(int offset) const { return f16_to_f32(static_cast<u16>(half(offset))); }
    DEVICE u32 byte(int offset) const { return *reinterpret_cast<const u8 *>(from + offset); }
    // Reads up to 3 bytes before and after the word.
    DEVICE u32 any_word(int offset) const {
        const u64 at = ALIGNED ? static_cast<u64>(offset) : reinterpret_cast<u64>(from + offset);
        const int shift = static_cast<int>(at & 3);
        const u32 *words = reinterpret_cast<const u32 *>(from + offset - shift);
        if (shift == 0) return words[0];
        return static_cast<u32>((static_cast<u64>(words[1]) << 32 | words[0]) >> (8 * shift));
    }
};

// --- types ---

// What most types have in common.
struct Plain {
    static constexpr bool HAS_MIN = false;  // whether there is a w_min
    // whether values 0..15 and 16..31 have float scales of their own: then `accumulate` gets the
    // product of the second 16 and their scale as a_sum and w_min, and HAS_MIN is true
    static constexpr bool IN_16 = false;
    // whether each 16 values have an integer scale: then sub_scales(at, b, first, second), and the
    // bytes are signed after subtracting OFFSET, or those of fourfold(at, b, t, low, high) if SHIFT
    // is 2: four times as large
    static constexpr bool HAS_SUB_SCALES = false;
    static constexpr int SHIFT = 0;
    // whether each 16 values have an integer minimum, up to 127: then sub_mins(at, b, first, second),
    // `accumulate` gets their products with the columns' sums as a_sum, and HAS_MIN is true
    static constexpr bool HAS_SUB_MINS = false;
    static constexpr bool MANY_REGISTERS = false;  // whether unpacking takes many registers
    // whether scales and minima of blocks are packed with others, so that unpacking them takes steps
    static constexpr bool PACKS_SCALES = false;
    static constexpr int OFFSET = 0;  // to subtract from the integers that `words` gives
    // whether `words` needs what `prepare`, called by all threads of a block, has put into shared
    // memory; a barrier must follow
    static constexpr bool HAS_GRID = false;
    static DEVICE void prepare() {}
};

// The same byte four times.
DEVICE u32 in_all_bytes(int byte) { return static_cast<u32>(byte) * 0x01010101u; }

// Subtract n from each byte; bytes are below 128, results are signed.
template <int n> DEVICE u32 centered(u32 bytes) {
    return (bytes + (128 - n) * 0x01010101u) ^ 0x80808080u;
}

// A thread's words of block b, as signed bytes.
template <class Type, class View>
DEVICE void centered_words(const View &view, int b, int t, u32 &low, u32 &high) {
    Type::words(view, b, t, low, high);
    if (Type::OFFSET != 0) {
        low = centered<Type::OFFSET>(low);
        high = centered<Type::OFFSET>(high);
    }
}

// The same, 2 ** SHIFT times as large.
template <class Type, class View>
DEVICE void shifted_words(const View &view, int b, int t, u32 &low, u32 &high) {
    if constexpr (Type::SHIFT == 2) {
        Type::fourfold(view, b, t, low, high);
    } else {
        centered_words<Type>(view, b, t, low, high);
    }
}

// The minima of block b as operands for the tensor cores: each is the factor of 16 values.
template <class Type, class View> DEVICE void mins_of(const View &view, int b, u32 &low, u32 &high) {
    int first, second;
    Type::sub_mins(view, b, first, second);
    low = in_all_bytes(first);
    high = in_all_bytes(second);
}

// --- types of 32 values: d, m if MIN, fifth bits if FIFTH, then 4 bits of each value in halves ---

template <bool MIN, bool FIFTH, int CENTER> struct Nibbles : Plain {
    static constexpr int VALUES = 32;
    static constexpr int QH = MIN ? 4 : 2;
    static constexpr int QS = QH + (FIFTH ? 4 : 0);
    static constexpr int BLOCK_BYTES = QS + 16;
    static constexpr int BYTES = CHUNK_BLOCKS * BLOCK_BYTES;
    static constexpr bool HAS_MIN = MIN;
    static constexpr int OFFSET = CENTER;

    // Spread 4 bits: each becomes bit 4 of a byte.
    static DEVICE u32 fifth(u32 bits) { return ((bits & 15) * 0x02040810u) & 0x10101010u; }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        int begin = b * BLOCK_BYTES;
        u32 qs = at.word(begin + QS + 4 * t);
        low = qs & 0x0f0f0f0f;
        high = (qs >> 4) & 0x0f0f0f0f;
        if (FIFTH) {
            u32 qh = at.word(begin + QH) >> (4 * t);
            low |= fifth(qh);
            high |= fifth(qh >> 16);
        }
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        w_scale = at.f16(b * BLOCK_BYTES);
        w_min = MIN ? at.f16(b * BLOCK_BYTES + 2) : 0.0f;
    }
};

struct Q4_0 : Nibbles<false, false, 8> {};
struct Q4_1 : Nibbles<true, false, 0> {};
struct Q5_0 : Nibbles<false, true, 16> {};
struct Q5_1 : Nibbles<true, true, 0> {};

struct Q8_0 : Plain {
    static constexpr int VALUES = 32;
    static constexpr int BLOCK_BYTES = 34;
    static constexpr int BYTES = CHUNK_BLOCKS * BLOCK_BYTES;

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        int begin = b * BLOCK_BYTES + 2 + 4 * t;
        low = at.word(begin);
        high = at.word(begin + 16);
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        w_scale = at.f16(b * BLOCK_BYTES);
        w_min = 0.0f;
    }
};

// --- types of 16 levels ---

// The levels of 4 bytes' low and high nibbles, as signed bytes.
DEVICE void iq4_levels(u32 nibbles, u32 &low, u32 &high) {
    levels<IQ4_LEVELS_0, IQ4_LEVELS_4, IQ4_LEVELS_8, IQ4_LEVELS_12>(nibbles, low, high);
}

struct IQ4_NL : Plain {
    static constexpr int VALUES = 32;
    static constexpr int BLOCK_BYTES = 18;
    static constexpr int BYTES = CHUNK_BLOCKS * BLOCK_BYTES;

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        iq4_levels(at.word(b * BLOCK_BYTES + 2 + 4 * t), low, high);
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        w_scale = at.f16(b * BLOCK_BYTES);
        w_min = 0.0f;
    }
};

struct IQ4_XS : Plain {
    static constexpr int VALUES = 256;
    static constexpr bool MANY_REGISTERS = true;
    static constexpr int SCALES_L = 4;
    static constexpr int QS = 8;
    static constexpr int BYTES = QS + CHUNK / 2;

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        iq4_levels(at.word(QS + 16 * b + 4 * t), low, high);
    }

    // d, then 2 bits of each scale, then 4.
    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        const u32 high = at.word(0) >> (16 + 2 * b) & 3, low = at.word(SCALES_L) >> (4 * b) & 15;
        w_scale = at.f16(0) * static_cast<float>(static_cast<int>(low | high << 4) - 32);
        w_min = 0.0f;
    }
};

// --- types of 4-bit floats: E2M1 doubled, so that all are integers ---

struct MXFP4 : Plain {
    static constexpr int VALUES = 32;
    static constexpr int BLOCK_BYTES = 17;
    static constexpr int BYTES = CHUNK_BLOCKS * BLOCK_BYTES;

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        e2m1_values(at.any_word(b * BLOCK_BYTES + 1 + 4 * t), low, high);
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        w_scale = half_of_e8m0(at.byte(b * BLOCK_BYTES));
        w_min = 0.0f;
    }
};

struct NVFP4 : Plain {
    static constexpr int VALUES = 64;
    static constexpr int BLOCK_BYTES = 18;  // of 32 values
    static constexpr int BYTES = CHUNK_BLOCKS * BLOCK_BYTES;
    static constexpr bool HAS_MIN = true;
    static constexpr bool IN_16 = true;

    // Where block b's GGUF block begins.
    static DEVICE int begin(int b) { return b / 2 * 2 * BLOCK_BYTES; }

    // 16 values are 8 bytes, the low nibbles first.
    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        const int first = begin(b) + 4 + 16 * (b & 1), word = 4 * (t & 1), shift = 4 * (t >> 1);
        const u32 values = (at.word(first + word) >> shift) & 0x0f0f0f0f;
        const u32 others = (at.word(first + 8 + word) >> shift) & 0x0f0f0f0f;
        e2m1_values(values | others << 4, low, high);
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &first, float &second) {
        const u32 both = at.half(begin(b) + 2 * (b & 1));
        first = half_of_ue4m3(both & 255);
        second = half_of_ue4m3(both >> 8);
    }
};

// --- types of 256 values ---

// d, dmin, scales and mins of 6 bits, fifth bits if FIFTH, 4 bits of each value in halves of 64
template <bool FIFTH> struct Sixes : Plain {
    static constexpr int VALUES = 256;
    static constexpr int SCALES = 4;
    static constexpr int QH = 16;
    static constexpr int QS = FIFTH ? 48 : 16;
    static constexpr int BYTES = QS + CHUNK / 2;
    static constexpr bool HAS_MIN = true;
    static constexpr bool PACKS_SCALES = true;

    static DEVICE u32 bits(u32 word, int b) {
        return (word >> (4 * (b & 1))) & 0x0f0f0f0f;
    }
    static DEVICE u32 fifth(u32 word, int b) { return ((word >> b) & 0x01010101u) << 4; }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        int begin = QS + BLOCK * (b / 2) + 4 * t;
        low = bits(at.word(begin), b);
        high = bits(at.word(begin + 16), b);
        if (FIFTH) {
            low |= fifth(at.word(QH + 4 * t), b);
            high |= fifth(at.word(QH + 16 + 4 * t), b);
        }
    }

    template <class B> static DEVICE void scales(const B &at, int b, float &w_scale, float &w_min) {
        u32 first = at.word(SCALES), second = at.word(SCALES + 4), scale, min;
        if (b < 4) {
            scale = first & 0x3f3f3f3f;
            min = second & 0x3f3f3f3f;
        } else {
            u32 third = at.word(SCALES + 8);
            scale = (third & 0x0f0f0f0f) | ((first >> 2) & 0x30303030);
            min = ((third >> 4) & 0x0f0f0f0f) | ((second >> 2) & 0x30303030);
        }
        int shift = 8 * (b & 3);
        w_scale = at.f16(0) * static_cast<float>((scale >> shift) & 255);
        w_min = -(at.f16(2) * static_cast<float>((min >> shift) & 255));
    }
};

struct Q4_K : Sixes<false> {};
struct Q5_K : Sixes<true> {};

struct Q6_K : Plain {
    static constexpr int VALUES = 256;
    static constexpr int QL = 0;
    static constexpr int QH = 128;
    static constexpr int SCALES = 192;
    static constexpr int D = 208;
    static constexpr int BYTES = 210;
    static constexpr bool HAS_SUB_SCALES = true;
    static constexpr int SHIFT = 2;
    static constexpr int OFFSET = 32;

    static DEVICE u32 bits(u32 ql, u32 qh, int b) {
        return ((ql >> (4 * (b / 2 & 1))) & 0x0f0f0f0f) |
               (((qh >> (2 * (b & 3))) & 0x03030303) << 4);
    }

    template <class B> static DEVICE void words(const B &at, int b, int t, u32 &low, u32 &high) {
        int ql = QL + 64 * (b / 4) + BLOCK * (b & 1) + 4 * t;
        int qh = QH + BLOCK * (b / 4) + 4 * t;
        low = bits(at.word(ql), at.word(qh), b);
        high = bits(at.word(ql + 16), at.word(qh + 16), b);
    }

    // Like `words`, but 4 * (integer - 32) as signed bytes, which takes fewer steps.
    template <class B> static DEVICE void fourfold(const B &at, int b, int t, u32 &low, u32 &high) {
        int ql = QL + 64 * (b / 4) + BLOCK * (b & 1) + 4 * t;
        int qh = QH + BLOCK * (b / 4) + 4 * t;
        low = fourfold_bits(at.word(ql), at.word(qh), b);
        high = fourfold_bits(at.word(ql + 16), at.word(qh + 16), b);
    }

    static DEVICE u32 fourfold_bits(u32 ql, u32 qh, int b) {
        u32 four = (b & 2 ? ql >> 2 : ql << 2) & 0x3c3c3c3c;
        return (four ^ 0x80808080) ^ ((qh << (6 - 2 * (b & 3))) & 0xc0c0c0c0);
    }

    template <class B> static DEVICE void scales(const B &at, int, float &w_scale, float &w_min) {
        w_scale = at.f16(D);
        w_min = 0.0f;
    }

    // isum = first * (product of values 0..15) + second * (product of values 16..31)
    template <class B> static DEVICE void sub_scales(const B &at, int b, int &first, int &second) {
        u32 both = at.half(SCALES + 2 * b);
        first = static_cast<i8>(both & 255);
        second = static_cast<i8>(both >> 8);
    }
};
