// Where a row of SET_ROWS goes. Rows are written in parallel. If an index occurs twice, the last
// row wins, as if rows were written in order.
#pragma once
#include "device.cuh"

// Indices of a run of rows.
struct Ids {
    const char *data;
    i64 nb;
    int size;  // bytes of an index: 4 or 8
    int n;
};

DEVICE i64 id_of(const Ids &ids, int i) {
    const char *at = ids.data + i * ids.nb;
    return ids.size == 8 ? *reinterpret_cast<const i64 *>(at) : *reinterpret_cast<const int *>(at);
}

// The row that row `i` is written to; -1 if its index is out of range or occurs again later. All
// threads of the block must call it together.
DEVICE i64 target_of(const Params &p, const Ids &ids, int i, i64 n_rows) {
    __shared__ int again;
    i64 index = id_of(ids, i);
    if (index < 0 || index >= n_rows) {
        if (threadIdx.x == 0) fail(p, index, n_rows);
        return -1;
    }
    if (i + 1 == ids.n) return index;
    if (threadIdx.x == 0) again = 0;
    sync_block();
    for (int j = i + 1 + threadIdx.x; j < ids.n; j += blockDim.x)
        if (id_of(ids, j) == index) again = 1;
    sync_block();
    return again ? -1 : index;
}
