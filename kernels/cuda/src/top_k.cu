// TOP_K of long rows, in rounds: each round reduces groups of a row to their k largest. The k of
// the last group are sorted. Keys are unique, so nothing depends on the order of threads.
#include "sort.cuh"

constexpr int MAX_THREADS = 1024;
constexpr int HELD = 8;   // keys of a thread
constexpr int MAX_K = 1024;
constexpr int DIGIT = 8;  // bits
constexpr int N_DIGITS = 1 << DIGIT;

// K: how many to find. N: values or keys of a row. FROM, TO: the halves of scratch memory to read
// and to write; FROM is -1 in the first round, which reads values. N_KEYS: of a row in a half.
// IS_LAST: 1 in the last round.
enum { K, N, FROM, TO, N_KEYS, IS_LAST };

struct Keys {
    u64 v[HELD];
};

DEVICE u64 *keys_of(const Params &p, i64 half) {
    return reinterpret_cast<u64 *>(p.scratch) + (half * gridDim.x + blockIdx.x) * p.param[N_KEYS].i;
}

// The keys of this thread, NO_KEY past the row's end.
DEVICE Keys load_keys(const Params &p) {
    const Row values = row_to_sort(p, blockIdx.x);
    const i64 begin = static_cast<i64>(blockIdx.y) * blockDim.x * HELD;
    Keys keys;
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        i64 i = begin + j * static_cast<i64>(blockDim.x) + threadIdx.x;
        keys.v[j] = NO_KEY;
        if (i >= p.param[N].i) continue;
        if (p.param[FROM].i < 0)
            keys.v[j] = values.key(i, true);
        else
            keys.v[j] = keys_of(p, p.param[FROM].i)[i];
    }
    return keys;
}

// The smallest key of the block.
DEVICE u64 least_of(const Keys &keys) {
    __shared__ u64 of_warps[WARP];
    u64 least = NO_KEY;
#pragma unroll
    for (int j = 0; j < HELD; j++) least = smaller(least, keys.v[j]);
    for (int mask = WARP / 2; mask > 0; mask /= 2) least = smaller(least, shfl_xor(least, mask));
    if (lane_id() == 0) of_warps[warp_id()] = least;
    sync_block();
    for (u32 i = 0; i < blockDim.x / WARP; i++) least = smaller(least, of_warps[i]);
    return least;
}

// A digit of the key to find. Of the keys with the same higher digits: how many have a smaller
// digit, and how many have this one.
struct Digit {
    int value, n_before, n_same;
};

// Find the digit at which the counts reach `n`. One warp calls it.
DEVICE void find_digit(const int *counts, int n, Digit *found) {
    constexpr int N_OWN = N_DIGITS / WARP;
    const int lane = lane_id(), *own = counts + N_OWN * lane;
    int sum = 0;
    for (int i = 0; i < N_OWN; i++) sum += own[i];
    int end = sum;
    for (int d = 1; d < WARP; d *= 2) {
        int other = shfl(end, lane < d ? lane : lane - d);
        if (lane >= d) end += other;
    }
    int before = end - sum;
    if (before >= n || end < n) return;
    int i = 0;
    while (before + own[i] < n) before += own[i++];
    *found = {N_OWN * lane + i, before, own[i]};
}

// The n-th key of the block in ascending order, or a number between it and the next key.
DEVICE u64 nth_of(const Keys &keys, int n) {
    __shared__ int counts[N_DIGITS];
    __shared__ Digit found;
    u64 known = 0;  // the digits above `shift`
    for (int shift = 64 - DIGIT; shift >= 0; shift -= DIGIT) {
        for (u32 i = threadIdx.x; i < N_DIGITS; i += blockDim.x) counts[i] = 0;
        sync_block();
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            u64 digits = keys.v[j] >> shift;
            if (digits >> DIGIT == known)
                atomic_add(&counts[static_cast<u32>(digits) % N_DIGITS], 1);
        }
        sync_block();
        if (warp_id() == 0) find_digit(counts, n, &found);
        sync_block();
        known = known << DIGIT | static_cast<u32>(found.value);
        n -= found.n_before;
        if (n == found.n_same) return ((known + 1) << shift) - 1;
    }
    return known;
}

// Grid: (row, group of HELD keys for each thread).
KERNEL(top_k, MAX_THREADS, 1) {
    __shared__ u64 best[MAX_K];
    __shared__ int n_found;
    const int k = static_cast<int>(p.param[K].i);
    const i64 rest = p.param[N].i - static_cast<i64>(blockIdx.y) * blockDim.x * HELD;
    const int n = static_cast<int>(smaller(rest, static_cast<i64>(k)));
    const Keys keys = load_keys(p);
    if (threadIdx.x == 0) n_found = 0;
    for (int i = threadIdx.x; i < MAX_K; i += blockDim.x) best[i] = NO_KEY;
    sync_block();
    const u64 last = k == 1 ? least_of(keys) : nth_of(keys, n);
#pragma unroll
    for (int j = 0; j < HELD; j++)
        if (keys.v[j] <= last && keys.v[j] != NO_KEY) best[atomic_add(&n_found, 1)] = keys.v[j];
    if (p.param[IS_LAST].i) {
        int size = 1;
        while (size < k) size *= 2;
        sort_keys(best, size);
        int *out = reinterpret_cast<int *>(row_of(p.t[0], blockIdx.x));
        for (int i = threadIdx.x; i < k; i += blockDim.x) out[i] = static_cast<int>(best[i]);
    } else {
        sync_block();
        u64 *out = keys_of(p, p.param[TO].i) + static_cast<i64>(blockIdx.y) * k;
        for (int i = threadIdx.x; i < k; i += blockDim.x) out[i] = best[i];
    }
}
