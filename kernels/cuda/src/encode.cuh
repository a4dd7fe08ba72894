// Rows of float32 into any writable type, for SET_ROWS, copies and caches. Blocks have the bits of
// `gguf.quants`, those of IQ4_NL of `kernels/quants/iq4_nl.py`. A warp encodes a block of 32 values,
// one value in each lane.
#pragma once
#include "tables.cuh"
#include "units.cuh"

DEVICE float inverse_of(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }

DEVICE float warp_min(float v) { return -warp_max(-v); }

DEVICE void store_f16(u8 *at, float v) { *reinterpret_cast<u16 *>(at) = f32_to_f16(v); }

// |v| as bits: NaN is larger than all numbers.
DEVICE u32 distance_of(float v) { return as_bits(v) & 0x7fffffff; }

// The largest |v| of the lanes as bits; a NaN's if there is one.
DEVICE u32 warp_distance(float v) {
    u32 most = distance_of(v);
    for (int mask = WARP / 2; mask > 0; mask /= 2) most = larger(most, shfl_xor(most, mask));
    return most;
}

// The value furthest from 0, with its sign; the first one if there are several. NaN if there is one.
DEVICE float furthest(float v) {
    u32 best = ballot(distance_of(v) == warp_distance(v));
    return shfl(v, popcount(~best & (best - 1)) % WARP);  // the zeros below the lowest one
}

// Store 32 nibbles in 16 bytes: the first half in the low nibbles.
DEVICE void store_nibbles(u8 *qs, int q) {
    int other = shfl_xor(q, 16);
    if (lane_id() < 16) qs[lane_id()] = static_cast<u8>((q & 15) | (other & 15) << 4);
}

DEVICE void store_fifth_bits(u8 *qh, int q) {
    u32 bits = ballot((q & 16) != 0);
    if (lane_id() < 4) qh[lane_id()] = static_cast<u8>(bits >> (8 * lane_id()));
}

DEVICE void encode_q8_0(u8 *block, float v) {
    float d = as_float(warp_distance(v)) / 127.0f;
    float x = v * inverse_of(d), a = fabsf(x), whole = floorf(a);
    whole += floorf(2.0f * (a - whole));  // halves away from 0
    if (lane_id() == 0) store_f16(block, d);
    block[2 + lane_id()] = static_cast<u8>(static_cast<int>(x < 0.0f ? -whole : whole));
}

// Q4_0 and Q5_0: d is chosen so that the value furthest from 0 becomes -HALF.
template <int HALF> DEVICE void encode_symmetric(u8 *block, float v) {
    constexpr bool has_fifth = HALF == 16;
    float d = furthest(v) / -HALF;
    int q = smaller(static_cast<int>(v * inverse_of(d) + (HALF + 0.5f)), 2 * HALF - 1);
    if (lane_id() == 0) store_f16(block, d);
    if (has_fifth) store_fifth_bits(block + 2, q);
    store_nibbles(block + (has_fifth ? 6 : 2), q);
}

// Q4_1 and Q5_1: LARGEST steps from the smallest value to the largest. Both scales become NaN if a
// value is.
template <int LARGEST> DEVICE void encode_range(u8 *block, float v) {
    constexpr bool has_fifth = LARGEST == 31;
    float least = warp_min(v);
    if (ballot(v != v)) least = as_float(0x7fffffff);  // NaN
    float d = (warp_max(v) - least) / LARGEST;
    int q = smaller(static_cast<int>((v - least) * inverse_of(d) + 0.5f), LARGEST);
    if (lane_id() == 0) {
        store_f16(block, d);
        store_f16(block + 2, least);
    }
    if (has_fifth) store_fifth_bits(block + 4, q);
    store_nibbles(block + (has_fifth ? 8 : 4), q);
}

DEVICE float iq4_level_at(int i) {
    const u32 four = i < 4   ? IQ4_LEVELS_0
                     : i < 8  ? IQ4_LEVELS_4
                     : i < 12 ? IQ4_LEVELS_8
                              : IQ4_LEVELS_12;
    return static_cast<float>(static_cast<i8>(four >> 8 * (i % 4)));
}

// The number of the level nearest to x; of two, the higher. NaN gets the last one.
DEVICE int nearest_iq4_level(float x, float &level) {
    int number = 0;
    level = iq4_level_at(0);
#pragma unroll
    for (int i = 0; i < 15; i++) {
        const float low = iq4_level_at(i), high = iq4_level_at(i + 1);
        const bool is_higher = !(x - low < high - x);
        number += is_higher;
        level = is_higher ? high : level;
    }
    return number;
}

// The sum of the lanes' values, in order.
DEVICE float sum_in_order(float v) {
    float sum = 0.0f;
    for (int lane = 0; lane < WARP; lane++) sum += shfl(v, lane);
    return sum;
}

// The levels nearest to the values if the one furthest from 0 gets the lowest level; then the factor
// with the least squared error, weighted by the squared values.
DEVICE void encode_iq4_nl(u8 *block, float v) {
    const float most = furthest(v == v ? v : 0.0f);  // NaN is never it
    const bool is_zero = fabsf(most) < 1e-15f;
    float level;
    const int number = nearest_iq4_level(v * (1.0f / (most / iq4_level_at(0))), level);
    const float x = sum_in_order(v * v * level * v), square = sum_in_order(v * v * level * level);
    if (lane_id() == 0) store_f16(block, !is_zero && square > 0.0f ? x / square : 0.0f);
    store_nibbles(block + 2, is_zero ? 0 : number);
}

// Encode the warp's 32 values as a block of a quantized type.
DEVICE void encode_block(int type, char *at, float v) {
    u8 *block = reinterpret_cast<u8 *>(at);
    switch (type) {
        case TYPE_Q4_0: encode_symmetric<8>(block, v); break;
        case TYPE_Q4_1: encode_range<15>(block, v); break;
        case TYPE_Q5_0: encode_symmetric<16>(block, v); break;
        case TYPE_Q5_1: encode_range<31>(block, v); break;
        case TYPE_IQ4_NL: encode_iq4_nl(block, v); break;
        default: encode_q8_0(block, v);
    }
}

DEVICE int block_bytes(int type) {
    switch (type) {
        case TYPE_Q4_0:
        case TYPE_IQ4_NL: return 18;
        case TYPE_Q4_1: return 20;
        case TYPE_Q5_0: return 22;
        case TYPE_Q5_1: return 24;
        default: return 34;
    }
}

DEVICE bool is_quantized(int type) {
    return type != TYPE_F32 && type != TYPE_F16 && type != TYPE_BF16 && type != TYPE_I32;
}

// Bytes of `n` contiguous elements.
DEVICE i64 encoded_size(int type, int n) {
    if (is_quantized(type)) return static_cast<i64>(n / WARP) * block_bytes(type);
    return static_cast<i64>(n) * (type == TYPE_F16 || type == TYPE_BF16 ? 2 : 4);
}

// Encode `n` floats into a contiguous row, by the whole thread block.
DEVICE void encode_row(int type, const float *from, char *to, int n) {
    if (is_quantized(type)) {
        const int n_warps = blockDim.x / WARP;
        for (int i = WARP * warp_id(); i < n; i += WARP * n_warps)
            encode_block(type, to + encoded_size(type, i), from[i + lane_id()]);
        return;
    }
    const int size = static_cast<int>(encoded_size(type, 1));
    for (int i = UNIT * threadIdx.x; i < n; i += UNIT * blockDim.x) {
        float v[UNIT];
        int count = smaller(UNIT, n - i);
        load_unit(TYPE_F32, reinterpret_cast<const char *>(from + i), 4, count, v);
        store_unit(type, to + i * size, size, count, v);
    }
}
