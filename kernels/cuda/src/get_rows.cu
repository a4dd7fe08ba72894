// GET_ROWS: rows by index, dequantized; I32 unchanged.
#include "dequantize.cuh"

constexpr int THREADS = 256;

enum { TYPE };

// Grid: (row of the node, part of THREADS units).
KERNEL(get_rows, THREADS, 1) {
    const Tensor &out = p.t[0], &a = p.t[1], &ids = p.t[2];
    u32 r = blockIdx.x, m1 = static_cast<u32>(ids.ne[0]), m2 = static_cast<u32>(ids.ne[1]);
    u32 i1 = r % m1, i2 = r / m1 % m2, i3 = r / m1 / m2;
    int index = *reinterpret_cast<const int *>(at(ids, i1 * ids.nb[0], i2, i3, 0));
    if (index < 0 || index >= a.ne[1]) {
        if (blockIdx.y == 0 && threadIdx.x == 0) fail(p, index, a.ne[1]);
        return;
    }
    u32 n = static_cast<u32>(out.ne[0]), i = UNIT * (blockIdx.y * THREADS + threadIdx.x);
    if (i >= n) return;
    int type = static_cast<int>(p.param[TYPE].i), count = smaller(UNIT, static_cast<int>(n - i));
    float v[UNIT];
    load_any(type, at(a, 0, index, i2, i3), i, a.nb[0], count, v);
    char *to = at(out, 0, i1, i2, i3) + i * out.nb[0];
    // I32 is moved as float32 of the same bits
    store_unit(TYPE_F32, to, out.nb[0], count, v);
}
