// Inputs from pinned memory of the host, which it can write again as soon as they are copied.
//
// Tensor 1 goes to tensor 0, both contiguous and aligned to 16 bytes. Its first words say which
// parts are in use: how many, and the begin and end of each, in pieces of 16 bytes (Tensor.set_bundle).
// Tensor 2 is two lines in memory of the host: the number of these inputs, and that of the last ones
// that were copied. One block copies all: reads of the host's memory take long, but overlap.
#include "device.cuh"

constexpr int THREADS = 1024;
constexpr int LINE = 64;

enum { N_PIECES };

KERNEL(from_host, THREADS, 1) {
    uint4 *to = reinterpret_cast<uint4 *>(p.t[0].data);
    const uint4 *from = reinterpret_cast<const uint4 *>(p.t[1].data);
    const int *header = reinterpret_cast<const int *>(p.t[1].data);
    const int thread = static_cast<int>(threadIdx.x);
    const int n_pieces = static_cast<int>(p.param[N_PIECES].i), n_parts = header[0];
    if (n_parts <= 0) {
        for (int i = thread; i < n_pieces; i += THREADS) to[i] = from[i];
    } else {
        int team = WARP;  // threads that copy a part
        while (2 * team <= THREADS && 2 * team * n_parts <= THREADS) team *= 2;
        for (int part = thread / team; part < n_parts; part += THREADS / team) {
            int end = header[2 * part + 2];
            if (end > n_pieces) end = n_pieces;
            for (int i = header[2 * part + 1] + thread % team; i < end; i += team) to[i] = from[i];
        }
    }
    sync_block();
    if (thread == 0) {
        *reinterpret_cast<i64 *>(p.t[2].data + LINE) = *reinterpret_cast<i64 *>(p.t[2].data);
        fence_system();
    }
}
