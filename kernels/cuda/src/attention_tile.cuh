// Tiles of keys and values: 32 positions of a head, copied from the paged pool into shared memory
// as rows of float16, or of bfloat16 if the pool is. A tile is in one page, whose size is a multiple
// of 32. Knows no queries.
//
// PoolTile<type of the pool, elements of a row, threads, stages>: `copy` begins to copy the first `n`
// positions of a tile, from `cell` on, and fills the rest with zeros. After it has arrived
// (copy_async_wait, sync_block), `unpack` converts it to float16 if IS_PACKED. If there are more
// threads than THREADS, those with the same index modulo THREADS have tiles of their own.
#pragma once
#include "attention_blocks.cuh"

constexpr int TILE = 32;

// Stride of a row in shared memory, in units of 16 bytes: D elements, padded to a multiple of 16.
// It is odd, so load_matrix finds the same part of 8 rows in different banks.
DEVICE constexpr int stride_of(int d) { return (d + 15) / 16 * 2 | 1; }

DEVICE uint4 zeros() { return make_uint4(0, 0, 0, 0); }

DEVICE u32 two_of(u16 low, u16 high) { return low | static_cast<u32>(high) << 16; }
DEVICE u32 two_of(float low, float high) { return two_of(f32_to_f16(low), f32_to_f16(high)); }

// The operands of the tensor cores for a type of pool.
template <typename T> struct Operands {
    static constexpr u32 INFINITE = 0x7c00;  // the exponent of infinity

    static DEVICE u32 two(float low, float high) { return two_of(low, high); }
    static DEVICE void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
        mma_f16(d, a, b);
    }
};

#if HAS_BF16_MMA
template <> struct Operands<BF16> {
    static constexpr u32 INFINITE = 0x7f80;

    static DEVICE u32 two(float low, float high) {
        return two_of(f32_to_bf16(low), f32_to_bf16(high));
    }
    static DEVICE void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
        mma_bf16(d, a, b);
    }
};
#endif

// Zero the elements from D on in rows of a tile; nothing else writes them.
template <int D, int THREADS> DEVICE void pad_rows(uint4 *tile, int n_rows) {
    if (D % 16 != 0)
        for (int row = threadIdx.x % THREADS; row < n_rows; row += THREADS)
            tile[row * stride_of(D) + D / 8] = zeros();
}

// How threads share a tile's rows of ALL parts, in strips of at most 32: a thread has the same part
// of several rows.
template <int ALL, int THREADS> struct Shares {
    static constexpr int N = ALL < WARP ? ALL : WARP, N_STRIPS = (ALL + N - 1) / N;
    static constexpr int LEAST = THREADS > TILE ? THREADS / TILE : 1;
    static constexpr int MIN = N > LEAST ? N : LEAST;
    static constexpr int WIDTH = MIN <= 1 ? 1 : MIN <= 2 ? 2 : MIN <= 4 ? 4 : MIN <= 8 ? 8
                               : MIN <= 16 ? 16 : 32;
    static constexpr int STEP = THREADS / WIDTH;  // from one row to the next

    static DEVICE int part(int strip) { return strip * WARP + threadIdx.x % WIDTH; }
    static DEVICE int row() { return threadIdx.x % THREADS / WIDTH; }
    static DEVICE bool has_part(int strip) { return part(strip) < ALL; }
};

// Blocks of attention_blocks.cuh. One stage, and the bytes of the next one. Blocks are unaligned:
// every aligned 16 bytes that contain one of their bytes are copied. That may include bytes before
// or after the pool.
template <typename T, int D, int THREADS, int STAGES = 2> struct PoolTile {
    static constexpr bool IS_PACKED = true;
    static constexpr int BLOCK = 32, BLOCK_BYTES = T::BYTES;
    static constexpr int MAX_BYTES = (D % BLOCK ? D + 24 + BLOCK - 1 : D) / BLOCK * BLOCK_BYTES;
    static constexpr int N_CHUNKS = (14 + MAX_BYTES + 15) / 16;
    static constexpr int STRIDE = stride_of(D), SIZE = TILE * (STRIDE + N_CHUNKS);

    const char *from;
    int nb, first, n_bytes;  // first: a row's first element in its block; n_bytes: of its blocks
    uint4 *tile, *packed;

    DEVICE PoolTile(const Tensor &pool, int element, uint4 *shared)
        : from(pool.data + element / BLOCK * BLOCK_BYTES),
          nb(static_cast<int>(pool.nb[1])),
          first(element % BLOCK),
          n_bytes((first + D + BLOCK - 1) / BLOCK * BLOCK_BYTES),
          tile(shared),
          packed(shared + TILE * STRIDE) {
        pad_rows<D, THREADS>(tile, TILE);
    }

    DEVICE const uint4 *rows(int) const { return tile; }

    static DEVICE int offset_of(const char *row) {
        return static_cast<int>(reinterpret_cast<u64>(row) & 15);
    }

    DEVICE void copy(int, int cell, int n) const {
        typedef Shares<N_CHUNKS, THREADS> Chunks;
#pragma unroll
        for (int strip = 0; strip < Chunks::N_STRIPS; strip++)
            if (Chunks::has_part(strip)) copy_part<Chunks>(Chunks::part(strip), cell, n);
    }

    template <class Chunks> DEVICE void copy_part(int part, int cell, int n) const {
        uint4 *const to = packed + Chunks::row() * N_CHUNKS + part;
        const char *row = from + static_cast<i64>(cell + Chunks::row()) * nb;
#pragma unroll
        for (int i = 0; i < TILE; i += Chunks::STEP, row += Chunks::STEP * nb) {
            const int begin = offset_of(row) - 16 * part, end = begin + n_bytes;
            if (i + Chunks::row() < n && end > 0)
                copy_async(to + i * N_CHUNKS, row - begin);
        }
    }

    DEVICE void unpack(int cell, int n) const {
        typedef Shares<D / 8, THREADS> Octets;
#pragma unroll
        for (int strip = 0; strip < Octets::N_STRIPS; strip++)
            if (Octets::has_part(strip)) unpack_part<Octets>(Octets::part(strip), cell, n);
    }

    template <class Octets> DEVICE void unpack_part(int part, int cell, int n) const {
        uint4 *const to = tile + Octets::row() * STRIDE + part;
        const char *bytes = from + static_cast<i64>(cell + Octets::row()) * nb;
#pragma unroll 2
        for (int i = 0; i < TILE; i += Octets::STEP, bytes += Octets::STEP * nb) {
            const int row = i + Octets::row();
            to[i * STRIDE] = row < n ? octet_of(row, offset_of(bytes), first + 8 * part)
                                     : zeros();
        }
    }

    // 8 elements of a row from `element` on, a multiple of 8. Each is rounded once.
    DEVICE uint4 octet_of(int row, int offset, int element) const {
        const char *const block = reinterpret_cast<const char *>(packed + row * N_CHUNKS) + offset +
                                  element / BLOCK * BLOCK_BYTES;
        float v[8];
        T::load(v, block, element % BLOCK);
        return make_uint4(two_of(v[0], v[1]), two_of(v[2], v[3]), two_of(v[4], v[5]),
                          two_of(v[6], v[7]));
    }
};

// With two stages, one may be copied while the other is used.
template <int D, int THREADS, int STAGES> struct PoolTile<F16, D, THREADS, STAGES> {
    static constexpr bool IS_PACKED = false;
    static constexpr int STRIDE = stride_of(D), SIZE = STAGES * TILE * STRIDE;

    const char *from;
    int nb;
    bool aligned;
    uint4 *tiles;

    DEVICE PoolTile(const Tensor &pool, int first, uint4 *shared)
        : from(pool.data + 2 * first), nb(static_cast<int>(pool.nb[1])), tiles(shared) {
        aligned = ((reinterpret_cast<u64>(from) | nb) & 15) == 0;
        pad_rows<D, THREADS>(tiles, STAGES * TILE);
    }

    DEVICE const uint4 *rows(int stage) const { return tiles + stage * TILE * STRIDE; }

    DEVICE void copy(int stage, int cell, int n) const {
        typedef Shares<D / 8, THREADS> Chunks;
#pragma unroll
        for (int strip = 0; strip < Chunks::N_STRIPS; strip++)
            if (Chunks::has_part(strip)) copy_part<Chunks>(Chunks::part(strip), stage, cell, n);
    }

    template <class Chunks>
    DEVICE void copy_part(int part, int stage, int cell, int n) const {
        uint4 *const to = tiles + (stage * TILE + Chunks::row()) * STRIDE + part;
        const char *const row =
            from + 16 * part + static_cast<i64>(cell + Chunks::row()) * nb;
        if (aligned && n == TILE) {
#pragma unroll 8  // more would take too many registers
            for (int i = 0; i < TILE; i += Chunks::STEP) copy_async(to + i * STRIDE, row + i * nb);
        } else {
#pragma unroll 1
            for (int i = 0; i < TILE; i += Chunks::STEP) {
                if (i + Chunks::row() >= n) to[i * STRIDE] = zeros();
                else if (aligned) copy_async(to + i * STRIDE, row + i * nb);
                else to[i * STRIDE] = load_octet(row + i * nb);
            }
        }
    }

    DEVICE void unpack(int, int) const {}

    static DEVICE uint4 load_octet(const char *at) {
        const u16 *const v = reinterpret_cast<const u16 *>(at);
        return make_uint4(two_of(v[0], v[1]), two_of(v[2], v[3]), two_of(v[4], v[5]),
                          two_of(v[6], v[7]));
    }
};

template <int D, int THREADS, int STAGES>
struct PoolTile<BF16, D, THREADS, STAGES> : PoolTile<F16, D, THREADS, STAGES> {
    using PoolTile<F16, D, THREADS, STAGES>::PoolTile;
};
