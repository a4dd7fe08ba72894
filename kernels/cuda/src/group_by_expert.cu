// Sort the pairs (token, its i-th expert) of MUL_MAT_ID by expert, so that products read each
// expert's weights once for all of its pairs.
//
// Prepared 0: where each expert's pairs begin in the list, and where the last ones end, as ints;
// then the list of pairs as token * n_used + i, ascending for each expert. A block makes one
// expert's part: it counts the pairs before and collects its own. An invalid id is in no list.
#include "device.cuh"

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / WARP;

// parameters
constexpr int N_EXPERTS = 0;
constexpr int IDS = 1;  // number of the tensor with the ids

DEVICE int id_of(const Tensor &ids, int pair) {
    const int n_used = static_cast<int>(ids.ne[0]);
    return *reinterpret_cast<const int *>(at(ids, pair % n_used * ids.nb[0], pair / n_used, 0, 0));
}

// The sum of all threads' values, for every thread.
DEVICE int block_sum(int v) {
    __shared__ int sums[WARPS];
    for (int mask = WARP / 2; mask > 0; mask /= 2) v += shfl_xor(v, mask);
    if (lane_id() == 0) sums[warp_id()] = v;
    sync_block();
    int total = 0;
    for (int i = 0; i < WARPS; i++) total += sums[i];
    return total;
}

KERNEL(group_by_expert, THREADS, 4) {
    __shared__ int counts[2][WARPS];
    const Tensor &ids = p.t[p.param[IDS].i];
    const int n_experts = static_cast<int>(p.param[N_EXPERTS].i);
    const int n = static_cast<int>(ids.ne[0] * ids.ne[1]), own = blockIdx.x;
    int before = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const int id = id_of(ids, i);
        before += 0 <= id && id < own;
        if (own == 0 && (id < 0 || id >= n_experts)) fail(p, id, n_experts);
    }
    int *begins = reinterpret_cast<int *>(p.prepared[0]), *pairs = begins + n_experts + 1;
    int to = block_sum(before);
    if (threadIdx.x == 0) begins[own] = to;
    for (int first = 0, turn = 0; first < n; first += THREADS, turn ^= 1) {
        const int i = first + static_cast<int>(threadIdx.x);
        const bool is_own = i < n && id_of(ids, i) == own;
        const u32 set = ballot(is_own);
        // two sets of counts: a warp may be one barrier ahead of warps that still read
        if (lane_id() == 0) counts[turn][warp_id()] = popcount(set);
        sync_block();
        int place = to + popcount(set & ((1u << lane_id()) - 1));
        for (int w = 0; w < WARPS; w++) {
            if (w < warp_id()) place += counts[turn][w];
            to += counts[turn][w];
        }
        if (is_own) pairs[place] = i;
    }
    if (own == n_experts - 1 && threadIdx.x == 0) begins[n_experts] = to;
}
