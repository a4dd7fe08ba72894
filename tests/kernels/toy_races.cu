// A small kernel with and without races, for tests of the emulated GPU. t[0]: int [64 * blocks],
// t[1]: int [64 * 4]. Blocks have two warps.
#include "device.cuh"

constexpr int THREADS = 64;

enum { WHAT };

KERNEL(toy_race, THREADS, 1) {
    __shared__ int places[THREADS];
    DYNAMIC_SHARED(uint4, copies);
    const int own = static_cast<int>(threadIdx.x), in_warp = own ^ 1, in_other = own ^ 32;
    const uint4 *const from = reinterpret_cast<const uint4 *>(p.t[1].data);
    int *const results = reinterpret_cast<int *>(p.t[0].data);
    int *const out = results + blockIdx.x * THREADS + own;
    switch (p.param[WHAT].i) {
        case 0:
            places[own] = own;
            sync_block();
            *out = places[in_other];
            break;
        case 1:
            places[own] = own;
            *out = places[in_other];
            break;
        case 2:
            places[own] = own;
            sync_warp();
            *out = places[in_other];
            break;
        case 3:
            places[own] = own;
            sync_warp();
            *out = places[in_warp];
            break;
        case 4:
            places[own] = own;
            *out = places[shfl(in_warp, lane_id())];
            break;
        case 5:
            places[own] = 0;
            sync_block();
            *out = places[0];
            if (own == 0) places[0] = 1;
            break;
        case 6:
            places[own] = 0;
            sync_block();
            if (own % 2) places[0] = 1;
            sync_block();
            *out = places[0];
            break;
        case 7:
            places[0] = own;
            break;
        case 8:
            results[own] = static_cast<int>(blockIdx.x);
            break;
        case 9:
            *out = own;
            if (blockIdx.x == 0) results[THREADS + own] = own + 1;
            break;
        case 10:
            if (own == 0) places[0] = 0;
            sync_block();
            atomic_add(&places[0], 1);
            sync_block();
            *out = places[0];
            break;
        case 11:
            copy_async(copies + own, from + own);
            copy_async_commit();
            copies[own].x = 1;
            copy_async_wait<0>();
            break;
        case 12:
            copy_async(copies + own, from + own);
            copy_async_commit();
            copy_async_wait<0>();
            *out = static_cast<int>(copies[in_warp].x);
            break;
        case 13:
            copy_async(copies + own, from + own);
            copy_async_commit();
            copy_async_wait<0>();
            sync_warp();
            *out = static_cast<int>(copies[in_warp].x);
            break;
        default:
            copies[own].x = 1;
            sync_warp();
            *out = static_cast<int>(copies[in_warp].x);
            copy_async(copies + own, from + own);
            copy_async_commit();
            copy_async_wait<0>();
    }
}
