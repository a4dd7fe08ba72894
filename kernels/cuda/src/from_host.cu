// Inputs from pinned memory of the host, which it can write again as soon as they are copied.
//
// Tensor 1 goes to tensor 0, both contiguous and aligned to 16 bytes. Its header says which parts are
// in use: how many, and after the header the begin and end of each, in pieces of 16 bytes. It also
// says how many words are fed, and where: word i is the first element of column i of tensor 3, a result
// of the run before (Tensor.set_bundle). Tensor 2 is two lines in memory of the host: the number of
// these inputs, and that of the last ones that were copied. One block copies all: reads of the host's
// memory take long, but overlap.
#include "device.cuh"

constexpr int THREADS = 1024;
constexpr int LINE = 64;

enum { N_PIECES };
enum { N_PARTS, N_FED, FED_AT, HEADER };  // words of the header

KERNEL(from_host, THREADS, 1) {
    uint4 *to = reinterpret_cast<uint4 *>(p.t[0].data);
    const uint4 *from = reinterpret_cast<const uint4 *>(p.t[1].data);
    const int *header = reinterpret_cast<const int *>(p.t[1].data);
    const int thread = static_cast<int>(threadIdx.x);
    const int n_pieces = static_cast<int>(p.param[N_PIECES].i), n_parts = header[N_PARTS];
    // before anything is written: the copy may use the results' memory again. The header is not read
    // after the last barrier: thread 0 may have told the host already
    const int at = header[FED_AT] + thread;
    const bool is_fed = thread < header[N_FED] && thread < p.t[3].ne[1];
    const char *result = p.t[3].data + thread * p.t[3].nb[1];
    const int fed = is_fed ? *reinterpret_cast<const int *>(result) : 0;
    sync_block();
    if (n_parts <= 0) {
        for (int i = thread; i < n_pieces; i += THREADS) to[i] = from[i];
    } else {
        int team = WARP;  // threads that copy a part
        while (2 * team <= THREADS && 2 * team * n_parts <= THREADS) team *= 2;
        for (int part = thread / team; part < n_parts; part += THREADS / team) {
            const int *range = header + HEADER + 2 * part;
            int end = range[1];
            if (end > n_pieces) end = n_pieces;
            for (int i = range[0] + thread % team; i < end; i += team) to[i] = from[i];
        }
    }
    sync_block();
    if (is_fed && at < 4 * n_pieces) reinterpret_cast<int *>(to)[at] = fed;
    i64 *const numbers = reinterpret_cast<i64 *>(p.t[2].data);
    if (thread == 0) tell_host(numbers + LINE / 8, *numbers);
}
