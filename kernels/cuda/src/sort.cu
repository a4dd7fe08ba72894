// ARGSORT, and TOP_K of short rows or large k. A block sorts a tile. Sorted runs of longer rows are
// merged in pairs: each key's rank in the other run is found by a search.
#include "sort.cuh"

constexpr int TILE = 2048;  // keys that a block sorts
constexpr int THREADS = 256;

// DESCENDING: 1 or 0. FIRST_ROW, N_ROWS: the rows that this call sorts. KEYS: in shared memory, a
// power of two. FROM, TO: the halves of scratch memory to read and to write. RUN: keys of a sorted
// run. IS_LAST: 1 if the call writes the indices.
enum { DESCENDING, FIRST_ROW, N_ROWS, KEYS, FROM, TO, RUN, IS_LAST };

// The keys of a row in a half of scratch memory.
DEVICE u64 *keys_of(const Params &p, int half, i64 row) {
    return reinterpret_cast<u64 *>(p.scratch) + (half * p.param[N_ROWS].i + row) * p.t[1].ne[0];
}

// Grid: (row, tile).
KERNEL(sort_tiles, TILE / 2, 1) {
    __shared__ u64 keys[TILE];
    const Tensor &out = p.t[0], &x = p.t[1];
    const i64 row = blockIdx.x, begin = static_cast<i64>(blockIdx.y) * TILE;
    const int n = static_cast<int>(p.param[KEYS].i);
    const bool descending = p.param[DESCENDING].i != 0;
    const Row values = row_to_sort(p, p.param[FIRST_ROW].i + row);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        i64 at = begin + i;
        keys[i] = at < x.ne[0] ? values.key(at, descending) : NO_KEY;
    }
    sort_keys(keys, n);
    int *indices = reinterpret_cast<int *>(row_of(out, p.param[FIRST_ROW].i + row));
    u64 *sorted = keys_of(p, static_cast<int>(p.param[TO].i), row);
    const bool is_last = p.param[IS_LAST].i != 0;
    const i64 end = is_last ? out.ne[0] : x.ne[0];
    for (int i = threadIdx.x; i < n && begin + i < end; i += blockDim.x) {
        if (is_last)
            indices[begin + i] = static_cast<int>(keys[i]);
        else
            sorted[begin + i] = keys[i];
    }
}

// How many of `n` ascending keys are less than `key`.
DEVICE i64 rank_in(const u64 *keys, i64 n, u64 key) {
    i64 low = 0, high = n;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Grid: (row, THREADS keys of it).
KERNEL(merge_runs, THREADS, 1) {
    const i64 row = blockIdx.x, n = p.t[1].ne[0], run = p.param[RUN].i;
    const i64 i = static_cast<i64>(blockIdx.y) * THREADS + threadIdx.x;
    if (i >= n) return;
    const u64 *keys = keys_of(p, static_cast<int>(p.param[FROM].i), row);
    const i64 own = i / run * run, other = (i / run ^ 1) * run;
    const i64 n_other = larger(0ll, smaller(run, n - other));
    const u64 key = keys[i];
    const i64 to = smaller(own, other) + (i - own) + rank_in(keys + other, n_other, key);
    if (!p.param[IS_LAST].i)
        keys_of(p, static_cast<int>(p.param[TO].i), row)[to] = key;
    else if (to < p.t[0].ne[0])
        reinterpret_cast<int *>(row_of(p.t[0], p.param[FIRST_ROW].i + row))[to] =
            static_cast<int>(key);
}
