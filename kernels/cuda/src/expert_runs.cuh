// Runs of pairs (token, its i-th expert) of one expert, in the lists that group_by_expert.cu makes
// (prepared 1). A block of a tiled kernel multiplies the pairs of one run.
#pragma once
#include "device.cuh"

struct ExpertRun {
    int expert, n;     // n: of its pairs
    const int *pairs;  // token * n_used + i
};

// Find the `tile`th run of up to SIZE pairs, counted over all experts. False if there are fewer
// runs. All lanes get the same result.
template <int SIZE>
DEVICE bool find_run(const Params &p, int n_experts, int tile, ExpertRun &run) {
    const int *const begins = reinterpret_cast<const int *>(p.prepared[1]);
    int before = 0;  // runs of earlier experts
    for (int e0 = 0; e0 < n_experts; e0 += WARP) {
        const int e = e0 + lane_id();
        const int n = e < n_experts ? (begins[e + 1] - begins[e] + SIZE - 1) / SIZE : 0;
        int until = n;  // runs of this expert and of those before it
#pragma unroll
        for (int d = 1; d < WARP; d *= 2) {
            const int v = shfl(until, (lane_id() - d) & (WARP - 1));
            if (lane_id() >= d) until += v;
        }
        until += before;
        const int i = popcount(ballot(until <= tile));
        if (i < WARP) {
            run.expert = e0 + i;
            const int first = begins[run.expert] + (tile - shfl(until - n, i)) * SIZE;
            const int count = begins[run.expert + 1] - first;
            run.n = count < SIZE ? count : SIZE;
            run.pairs = begins + n_experts + 1 + first;
            return true;
        }
        before = shfl(until, WARP - 1);
    }
    return false;
}
