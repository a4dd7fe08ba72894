// Floats as integers of the same order, and the sorting of a block's keys.
//
// A key is a value's order in the high half and its index in the low half. No two keys of a row are
// equal, so any sort is stable. NaN is last in both directions, and -0 equals 0.
#pragma once
#include "units.cuh"

constexpr u64 NO_KEY = ~0ull;  // after all others
constexpr u32 LAST = ~0u;      // the order of NaN

DEVICE u32 order_of(float v, bool descending) {
    u32 bits = as_bits(v);
    if ((bits & 0x7fffffff) > 0x7f800000) return LAST;
    if (bits == 0x80000000) bits = 0;
    u32 order = bits & 0x80000000 ? ~bits : bits | 0x80000000;
    return descending ? ~order : order;
}

DEVICE u64 key_of(float v, u32 index, bool descending) {
    return static_cast<u64>(order_of(v, descending)) << 32 | index;
}

// A row to sort. An element whose bit in `mask` is 0 counts as NaN; null: no mask.
struct Row {
    const char *data;
    i64 nb0;
    const u32 *mask;

    DEVICE u64 key(i64 i, bool descending) const {
        const u32 index = static_cast<u32>(i);
        if (mask && (mask[i / 32] >> i % 32 & 1) == 0) return u64{LAST} << 32 | index;
        return key_of(*reinterpret_cast<const float *>(data + i * nb0), index, descending);
    }
};

// Row `r` of the first source. A second source is its mask.
DEVICE Row row_to_sort(const Params &p, i64 r) {
    const Tensor &x = p.t[1], &mask = p.t[2];
    const char *bits = mask.data ? row_of(mask, r) : nullptr;
    return {row_of(x, r), x.nb[0], reinterpret_cast<const u32 *>(bits)};
}

// Sort `n` keys in shared memory, ascending, by all threads of the block. `n` is a power of two.
DEVICE void sort_keys(u64 *keys, int n) {
    for (int size = 2; size <= n; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            sync_block();
            for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
                int low = 2 * i - i % stride, high = low + stride;
                u64 a = keys[low], b = keys[high];
                bool ascends = (low & size) == 0;
                if ((a > b) == ascends) keys[low] = b, keys[high] = a;
            }
        }
    }
    sync_block();
}
