// Small kernels that test the emulated grid and CUDA plans. Each does one thing, some do it wrong.
#include "device.cuh"

DEVICE int *ints(const Params &p, int i) { return reinterpret_cast<int *>(p.t[i].data); }
DEVICE float *floats(const Params &p, int i) { return reinterpret_cast<float *>(p.t[i].data); }
DEVICE int thread_id() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

// --- lanes: t[0] int [threads, 6] ---

KERNEL(toy_lanes, 128, 1) {
    int lane = lane_id(), *row = ints(p, 0) + 6 * thread_id();
    int v = 100 * warp_id() + lane;
    row[0] = shfl(v, 5);
    row[1] = shfl(v, (lane + 3) % WARP);
    row[2] = shfl_xor(v, 9);
    row[3] = static_cast<int>(ballot(lane % 3 == 0));
    row[4] = popcount(static_cast<u32>(row[3]) << (lane % 2));
    row[5] = static_cast<int>(shfl(1.5f * static_cast<float>(lane), 31 - lane) * 2.0f);
}

// t[0] float [2]: the sum and maximum of t[1], 32 floats
KERNEL(toy_sums, 32, 1) {
    float v = floats(p, 1)[lane_id()];
    floats(p, 0)[0] = warp_sum(v);
    floats(p, 0)[1] = warp_max(v);
}

// --- numbers ---

// t[0] float: of t[1], u16 as float16; t[2] u16: of t[3], floats, as float16
KERNEL(toy_f16, 256, 1) {
    i64 i = thread_id();
    if (i < p.t[1].ne[0]) floats(p, 0)[i] = f16_to_f32(reinterpret_cast<u16 *>(p.t[1].data)[i]);
    if (i < p.t[3].ne[0]) reinterpret_cast<u16 *>(p.t[2].data)[i] = f32_to_f16(floats(p, 3)[i]);
}

// t[0] int [1]: how many threads arrived; t[1] int: threads in the order of arrival
KERNEL(toy_atomics, 256, 1) { ints(p, 1)[atomic_add(ints(p, 0), 1)] = thread_id(); }

KERNEL(toy_fail, 64, 1) {
    if (threadIdx.x > 3) fail(p, threadIdx.x, 4);
}

// --- tensor cores: t[0] d [16, 8], t[1] a [16, K], t[2] b transposed [8, K] ---

DEVICE u32 word_of(const Params &p, int i, i64 row, i64 byte) {
    return *reinterpret_cast<u32 *>(p.t[i].data + row * p.t[i].nb[1] + byte);
}

// 4 bytes of a's row and b's column for each lane; the second half of K is 16 bytes later
#define FRAGMENTS()                                                                      \
    int group = lane_id() / 4, four = lane_id() % 4;                                     \
    u32 a[4] = {word_of(p, 1, group, 4 * four), word_of(p, 1, group + 8, 4 * four),      \
                word_of(p, 1, group, 4 * four + 16), word_of(p, 1, group + 8, 4 * four + 16)}; \
    u32 b[2] = {word_of(p, 2, group, 4 * four), word_of(p, 2, group, 4 * four + 16)}

template <typename T> DEVICE void load_result(const Params &p, T (&d)[4]) {
    T *at = reinterpret_cast<T *>(p.t[0].data) + 8 * (lane_id() / 4) + 2 * (lane_id() % 4);
    d[0] = at[0], d[1] = at[1], d[2] = at[64], d[3] = at[65];
}

template <typename T> DEVICE void store_result(const Params &p, const T (&d)[4]) {
    T *at = reinterpret_cast<T *>(p.t[0].data) + 8 * (lane_id() / 4) + 2 * (lane_id() % 4);
    at[0] = d[0], at[1] = d[1], at[64] = d[2], at[65] = d[3];
}

KERNEL(toy_mma_s8_k32, 32, 1) {
    FRAGMENTS();
    int d[4];
    load_result(p, d);
    mma_s8_k32(d, a, b);
    store_result(p, d);
}

KERNEL(toy_mma_s8_k16, 32, 1) {
    int group = lane_id() / 4, four = lane_id() % 4, d[4];
    u32 a[2] = {word_of(p, 1, group, 4 * four), word_of(p, 1, group + 8, 4 * four)};
    load_result(p, d);
    mma_s8_k16(d, a, word_of(p, 2, group, 4 * four));
    store_result(p, d);
}

KERNEL(toy_mma_f16, 32, 1) {
    FRAGMENTS();
    float d[4];
    load_result(p, d);
    mma_f16(d, a, b);
    store_result(p, d);
}

#if HAS_BF16_MMA
KERNEL(toy_mma_bf16, 32, 1) {
    FRAGMENTS();
    float d[4];
    load_result(p, d);
    mma_bf16(d, a, b);
    store_result(p, d);
}
#endif

// t[0] u32 [2, 32, 4]: what lanes get of t[1], four 8 x 8 matrices of 16 bits, plain and transposed
KERNEL(toy_load_matrix, 32, 1) {
    __shared__ uint4 rows[32];
    rows[lane_id()] = reinterpret_cast<uint4 *>(p.t[1].data)[lane_id()];
    sync_warp();
    u32 r[4], *out = reinterpret_cast<u32 *>(p.t[0].data) + 4 * lane_id();
    load_matrix_x4(r, &rows[lane_id()]);
    for (int i = 0; i < 4; i++) out[i] = r[i];
    load_matrix_x4_trans(r, &rows[lane_id()]);
    for (int i = 0; i < 4; i++) out[128 + i] = r[i];
}

// --- shared memory and barriers ---

// t[0] float [blocks]: the sum of each block's number and its threads'; param 0: 0 for no barrier
KERNEL(toy_block_sum, 256, 1) {
    __shared__ float parts[8];
    float v = warp_sum(static_cast<float>(threadIdx.x + blockIdx.x));
    if (lane_id() == 0) parts[warp_id()] = v;
    if (p.param[0].i) sync_block();
    if (threadIdx.x > 0) return;
    for (unsigned i = 1; i < blockDim.x / WARP; i++) v += parts[i];
    floats(p, 0)[blockIdx.x] = v;
}

template <int n> DEVICE float neighbor(float v, bool wait) {
    __shared__ float all[n];
    all[threadIdx.x] = v;
    if (wait) sync_warp();
    return all[(threadIdx.x + 1) % n];
}

// t[0] float [32]: the next lane's number; param 0: 0 for no barrier
KERNEL(toy_neighbor, 32, 1) {
    floats(p, 0)[lane_id()] = neighbor<32>(static_cast<float>(lane_id()), p.param[0].i != 0);
}

// t[0] int [blocks, 3]: the initial content of a block's shared memory, which it then overwrites
KERNEL(toy_poison, 32, 1) {
    __shared__ int fixed[4];
    __shared__ uint4 wide;
    DYNAMIC_SHARED(int, dynamic);
    if (threadIdx.x > 0) return;
    int *out = ints(p, 0) + 3 * blockIdx.x;
    out[0] = fixed[3], out[1] = static_cast<int>(wide.w), out[2] = dynamic[7];
    fixed[3] = dynamic[7] = 1;
    wide.w = 1;
}

// t[0] float [4, 32]: t[1] copied in 4 groups; each is read with at most param 0 in flight
KERNEL(toy_copies, 32, 1) {
    DYNAMIC_SHARED(float, own);
    for (int i = 0; i < 4; i++) {
        int at = 32 * i + 4 * lane_id();
        if (lane_id() < 8) copy_async(own + at, floats(p, 1) + at);
        copy_async_commit();
    }
    for (int i = 0; i < 4; i++) {
        switch (p.param[0].i + 3 - i) {
            case 0: copy_async_wait<0>(); break;
            case 1: copy_async_wait<1>(); break;
            case 2: copy_async_wait<2>(); break;
            case 3: copy_async_wait<3>(); break;
            default: break;
        }
        if (p.param[1].i) sync_warp();
        floats(p, 0)[32 * i + lane_id()] = own[32 * i + lane_id()];
    }
}

// Threads return before a barrier, which must not wait for them. t[0] int [1]: how many stayed.
KERNEL(toy_leave, 128, 1) {
    __shared__ int n;
    if (threadIdx.x >= p.param[0].i) return;
    if (threadIdx.x == 0) n = 0;
    sync_block();
    atomic_add(&n, 1);
    sync_block();
    if (threadIdx.x == 0) ints(p, 0)[0] = n;
}

// --- misuse; param 0 selects which ---

DEVICE int descend(int n) {
    volatile int more[1024];  // overflows the stack
    more[n % 1024] = n;
    return n == 0 ? 0 : descend(n + 1) + more[n % 1024];
}

KERNEL(toy_wrong, 128, 1) {
    alignas(16) __shared__ int fixed[4];
    DYNAMIC_SHARED(char, dynamic);
    i64 what = p.param[0].i, i = p.param[1].i;
    bool odd = threadIdx.x % 2;
    if (what == 0 && odd) sync_block();
    if (what == 0 && !odd) sync_warp();
    if (what == 1 && threadIdx.x == 3) return;
    if (what == 1) shfl(1, 0);
    if (what == 2) odd ? shfl(1, 0) : shfl_xor(1, 1);
    if (what == 3) ballot(odd);
    if (what == 4) dynamic[i] = 1;
    if (what == 5) fixed[i] = 1;
    if (what == 6) ints(p, 0)[i] = 1;
    if (what == 7) *reinterpret_cast<int *>(p.t[0].data + i) = 1;
    if (what == 8) ints(p, 0)[0] = 5 / static_cast<int>(i);
    if (what == 9) copy_async(p.t[0].data, p.t[0].data);
    if (what == 10) copy_async(&fixed[1], p.t[0].data);
    if (what == 11) {
        u32 r[4];
        load_matrix_x4(r, p.t[0].data);
    }
    if (what == 12) ints(p, 0)[0] = 1 << i;
    if (what == 13 && threadIdx.x < 32) sync_block();
    if (what == 13 && threadIdx.x == 32) ballot(true);
    if (what == 14) ints(p, 0)[0] = descend(1);
    if (what == 15 && odd) shfl(1, 0);
    if (what == 15 && !odd) shfl(1, 0);
}

// --- for streams and plans ---

// t[0] int: add param 0 to each
KERNEL(toy_add, 256, 1) {
    int i = thread_id();
    if (i < p.t[0].ne[0]) ints(p, 0)[i] += static_cast<int>(p.param[0].i);
}

// t[0] i64: all words of the kernel's parameters
KERNEL(toy_words, 1, 1) {
    i64 *out = reinterpret_cast<i64 *>(p.t[0].data);
    int n = 0;
    for (int i = 0; i < 10; i++) {
        out[n++] = reinterpret_cast<i64>(p.t[i].data);
        for (int j = 0; j < 4; j++) out[n++] = p.t[i].ne[j];
        for (int j = 0; j < 4; j++) out[n++] = p.t[i].nb[j];
    }
    for (int i = 0; i < 2; i++) out[n++] = reinterpret_cast<i64>(p.prepared[i]);
    for (int i = 0; i < 14; i++) out[n++] = p.param[i].i;
    out[n++] = static_cast<i64>(p.param[14].f * 4);
    out[n++] = p.param[15].i;
    out[n++] = reinterpret_cast<i64>(p.scratch);
    out[n++] = reinterpret_cast<i64>(p.error);
    out[n++] = p.call;
    out[n++] = p.n_blocks;
    out[n++] = static_cast<i64>(sizeof(Params));
}

// Report param 0 as a bad index if it is not below param 1.
KERNEL(toy_fail_at, 32, 1) {
    if (threadIdx.x == 0 && p.param[0].i >= p.param[1].i) fail(p, p.param[0].i, p.param[1].i);
}

DEVICE i64 *words(char *at) { return reinterpret_cast<i64 *>(at); }

// prepared[0] i64 [n]: t[param 1], i64 [n], plus param 0
KERNEL(toy_prepare, 32, 1) {
    const Tensor &x = p.t[p.param[1].i];
    for (i64 i = threadIdx.x; i < x.ne[0]; i += 32)
        words(p.prepared[0])[i] = words(x.data)[i] + p.param[0].i;
}

// t[0] i64 [n]: the sums of the prepared tensors
KERNEL(toy_sum_prepared, 32, 1) {
    for (i64 i = threadIdx.x; i < p.t[0].ne[0]; i += 32) {
        i64 sum = 0;
        for (int j = 0; j < 2; j++)
            if (p.prepared[j]) sum += words(p.prepared[j])[i];
        words(p.t[0].data)[i] = sum;
    }
}

// scratch i64: param 1 numbers from param 0 on
KERNEL(toy_put_scratch, 32, 1) {
    for (i64 i = threadIdx.x; i < p.param[1].i; i += 32) words(p.scratch)[i] = p.param[0].i + i;
}

// t[0] i64 [3]: the sum of scratch's numbers, and the addresses of scratch and prepared[0]
KERNEL(toy_sum_scratch, 32, 1) {
    if (threadIdx.x > 0) return;
    i64 *out = words(p.t[0].data);
    out[0] = 0;
    for (i64 i = 0; i < p.param[1].i; i++) out[0] += words(p.scratch)[i];
    out[1] = reinterpret_cast<i64>(p.scratch);
    out[2] = reinterpret_cast<i64>(p.prepared[0]);
}

// t[0] i64 [1]: add param 0; the block uses 64 numbers of dynamic shared memory
KERNEL(toy_count, 64, 1) {
    DYNAMIC_SHARED(i64, all);
    all[threadIdx.x] = p.param[0].i;
    sync_block();
    if (threadIdx.x == 0 && all[63] == p.param[0].i) words(p.t[0].data)[0] += p.param[0].i;
}
