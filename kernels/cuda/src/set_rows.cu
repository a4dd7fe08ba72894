// SET_ROWS: rows of float32 into rows of any writable type, by index.
#include "encode.cuh"
#include "set_rows.cuh"

constexpr int MAX_THREADS = 256;

enum { TYPE, ID_BYTES };

// A block for each row.
KERNEL(set_rows, MAX_THREADS, 1) {
    const Tensor &cache = p.t[0], &b = p.t[1], &ids = p.t[2];
    u32 r = blockIdx.x, m1 = static_cast<u32>(b.ne[1]), m2 = static_cast<u32>(b.ne[2]);
    u32 i1 = r % m1, i2 = r / m1 % m2, i3 = r / m1 / m2;
    Ids rows = {at(ids, 0, i2 % static_cast<u32>(ids.ne[1]), i3 % static_cast<u32>(ids.ne[2]), 0),
                ids.nb[0], static_cast<int>(p.param[ID_BYTES].i), static_cast<int>(m1)};
    i64 row = target_of(p, rows, static_cast<int>(i1), cache.ne[1]);
    if (row < 0) return;
    const float *from = reinterpret_cast<const float *>(at(b, 0, i1, i2, i3));
    encode_row(static_cast<int>(p.param[TYPE].i), from, at(cache, 0, row, i2, i3),
               static_cast<int>(b.ne[0]));
}
