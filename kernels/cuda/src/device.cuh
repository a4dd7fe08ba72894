// What every kernel uses: integer and half types, warps, tensor cores, and the parameter block. It
// needs no CUDA header, so NVRTC alone compiles it.
//
// Kernels reach PTX only through this file. With LAMELLA_GRID, the emulated GPU's header defines
// the same functions in plain C++, and kernels run on the host. So kernels write DYNAMIC_SHARED,
// not extern __shared__, and use the names below, not CUDA's intrinsics.
//
// Contraction is off (--fmad=false): a * b + c rounds twice, fmaf(a, b, c) once. So a formula has
// the same bits in every kernel that uses it.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

constexpr int WARP = 32;

#ifdef LAMELLA_GRID

#include LAMELLA_GRID  // the emulated GPU: all that the other branch defines

#else

#define DEVICE __device__ __forceinline__
#define LOOKUP_TABLE static __device__ const

// A kernel. Its blocks have THREADS threads; BLOCKS_PER_SM blocks should fit a multiprocessor.
#define KERNEL(name, threads, blocks_per_sm)                                       \
    extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm)           \
        name(const __grid_constant__ Params p)

// A kernel that may also run as `name_merged`: several launches of it as one. It must use
// p.n_blocks, not gridDim.x, and no third dimension.
#define MERGING_KERNEL(name, threads, blocks_per_sm)                               \
    DEVICE void name##_part(const Params &p);                                      \
    KERNEL(name, threads, blocks_per_sm) { name##_part(p); }                       \
    extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm)           \
        name##_merged(const __grid_constant__ Merged merged) {                     \
        const Params &p = merged.parts[blockIdx.z];                                \
        if (blockIdx.x < p.n_blocks) name##_part(p);                               \
    }                                                                              \
    DEVICE void name##_part(const Params &p)

// Shared memory whose size is given at launch, aligned to 16 bytes.
#define DYNAMIC_SHARED(type, name)                              \
    extern __shared__ uint4 dynamic_shared_memory_[];           \
    type *const name = reinterpret_cast<type *>(dynamic_shared_memory_)

// --- threads ---

DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE int lane_id() { return threadIdx.x % WARP; }
DEVICE int warp_id() { return threadIdx.x / WARP; }

// All 32 lanes call these together. shfl: the value of lane `lane`. shfl_xor: the value of the lane
// whose number is this lane's, xor `mask`.
template <typename T> DEVICE T shfl(T v, int lane) { return __shfl_sync(~0u, v, lane); }
template <typename T> DEVICE T shfl_xor(T v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
DEVICE u32 ballot(bool v) { return __ballot_sync(~0u, v); }
DEVICE int popcount(u32 v) { return __popc(v); }
// Four bytes of `low` (0..3) and `high` (4..7), at the low four nibbles of `at`, which are below 8.
DEVICE u32 byte_perm(u32 low, u32 high, u32 at) {
    u32 v;  // __byte_perm would clear the fourth bit of each nibble
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(low), "r"(high), "r"(at));
    return v;
}

// The sum of the products of four signed bytes, and `sum`.
DEVICE int dot_s8(u32 a, u32 b, int sum) {
    return __dp4a(static_cast<int>(a), static_cast<int>(b), sum);
}

DEVICE int atomic_add(int *at, int v) { return atomicAdd(at, v); }
DEVICE bool atomic_claim(u64 *at, u64 v) { return atomicCAS(at, 0ull, v) == 0ull; }  // if it was 0

// Write a word that the host may read while the kernel runs. When the host sees it, all that the
// block's threads did before their last barrier is done, also reads of the host's memory.
DEVICE void tell_host(i64 *at, i64 v) {
    __threadfence_system();
    *static_cast<volatile i64 *>(at) = v;
}

// --- bits of floats ---

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 as_bits(float v) { return __float_as_uint(v); }

DEVICE float f16_to_f32(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

DEVICE u16 f32_to_f16(float f) {  // to nearest even
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// --- tensor cores: d += a * b on a warp's fragments, in PTX's layout (mma.sync, row.col) ---

// 16 x 32 by 32 x 8 signed bytes. sm_75 has only 8 x 8 x 16: the sums are exact either way.
DEVICE void mma_s8_k32(int (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int k = 0; k < 2; k++)
        for (int m = 0; m < 2; m++)
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+r"(d[2 * m]), "+r"(d[2 * m + 1])
                : "r"(a[2 * k + m]), "r"(b[k]));
#endif
}

// 16 x 16 by 16 x 8 signed bytes: the first half of the fragments above.
DEVICE void mma_s8_k16(int (&d)[4], const u32 (&a)[2], u32 b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    for (int m = 0; m < 2; m++)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(d[2 * m]), "+r"(d[2 * m + 1])
            : "r"(a[m]), "r"(b));
#endif
}

// 16 x 16 by 16 x 8 of float16, summed in float32. sm_75 takes two steps of 8.
DEVICE void mma_f16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int k = 0; k < 2; k++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
#endif
}

#if __CUDA_ARCH__ >= 800
#define HAS_BF16_MMA 1
// Like mma_f16, with bfloat16.
DEVICE void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
#define HAS_BF16_MMA 0
#endif

// Load four 8 x 8 matrices of 16-bit elements from shared memory. Lane i gives the address of row
// i % 8 of matrix i / 8. It gets elements 2 * (i % 4) and the next of row i / 4 of each matrix.
DEVICE void load_matrix_x4(u32 (&r)[4], const void *row) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// The same, each matrix transposed.
DEVICE void load_matrix_x4_trans(u32 (&r)[4], const void *row) {
    u32 at = static_cast<u32>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

// --- asynchronous copies of 16 bytes into shared memory, in groups; synchronous before sm_80 ---

DEVICE void copy_async(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    u32 at = static_cast<u32>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
    *static_cast<uint4 *>(to) = *static_cast<const uint4 *>(from);
#endif
}

DEVICE void copy_async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most `n` of this thread's groups are in flight. To see what other threads copied,
// call sync_block too.
template <int n> DEVICE void copy_async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
#endif
}

#endif  // LAMELLA_GRID

// --- parameters: the layout is in kernels/plan/params.py and kernels/cuda/params.py ---

struct Tensor {
    char *data;
    i64 ne[4];
    i64 nb[4];  // bytes
};

union Param {
    i64 i;
    double f;
};

struct Params {
    Tensor t[10];       // the node and its sources, or the tensors that the call names
    char *prepared[2];  // sources in another form
    Param param[16];    // parameters of the op
    char *scratch;      // memory that the node's calls share
    u64 *error;         // where to report a bad index: call, value, limit
    i64 call;           // number of the call, from 1
    i64 n_blocks;       // of the call, in the grid's first dimension
};

constexpr int MAX_PARTS = 4;

// The parameter of merged launches: block z computes part z.
struct Merged {
    Params parts[MAX_PARTS];
};

// Report an index `value` that is not in 0 .. limit - 1. The kernel goes on without it.
DEVICE void fail(const Params &p, i64 value, i64 limit) {
    if (atomic_claim(p.error, static_cast<u64>(p.call))) {
        p.error[1] = static_cast<u64>(value);
        p.error[2] = static_cast<u64>(limit);  // the host reads it after the kernel's end
    }
}

DEVICE i64 n_rows(const Tensor &t) { return t.ne[1] * t.ne[2] * t.ne[3]; }

// Address of row `r`; rows are counted over dimensions 1, 2, 3.
DEVICE char *row_of(const Tensor &t, i64 r) {
    if (r < t.ne[1]) return t.data + r * t.nb[1];
    i64 i1 = r % t.ne[1], r2 = r / t.ne[1];
    return t.data + i1 * t.nb[1] + r2 % t.ne[2] * t.nb[2] + r2 / t.ne[2] * t.nb[3];
}

DEVICE char *at(const Tensor &t, i64 i0_bytes, i64 i1, i64 i2, i64 i3) {
    return t.data + i0_bytes + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3];
}

// --- floats of other types ---

struct F32 {
    typedef float stored;
    static DEVICE float load(const stored *at) { return *at; }
    static DEVICE void store(stored *at, float v) { *at = v; }
};

struct F16 {
    typedef u16 stored;
    static DEVICE float load(const stored *at) { return f16_to_f32(*at); }
    static DEVICE void store(stored *at, float v) { *at = f32_to_f16(v); }
};

DEVICE float bf16_to_f32(u16 h) { return as_float(static_cast<u32>(h) << 16); }

DEVICE u16 f32_to_bf16(float f) {  // to nearest even; NaN stays NaN (ggml-impl.h)
    u32 bits = as_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<u16>((bits >> 16) | 64);
    return static_cast<u16>((bits + (0x7fff + ((bits >> 16) & 1))) >> 16);
}

struct BF16 {
    typedef u16 stored;
    static DEVICE float load(const stored *at) { return bf16_to_f32(*at); }
    static DEVICE void store(stored *at, float v) { *at = f32_to_bf16(v); }
};

struct I32 {
    typedef int stored;
    static DEVICE float load(const stored *at) { return static_cast<float>(*at); }
    static DEVICE void store(stored *at, float v) { *at = static_cast<int>(v); }
};

// --- sums and maxima in one fixed order ---

DEVICE float warp_sum(float v) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) v += shfl_xor(v, mask);
    return v;
}

DEVICE float warp_max(float v) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) v = fmaxf(v, shfl_xor(v, mask));
    return v;
}
