// Copies into another type: CPY between floats, from and to I32, from and to quantized types.
//
// Elements keep their order; shapes and strides may differ. Values are converted through float32.
#include "dequantize.cuh"
#include "encode.cuh"
#include "walk.cuh"

constexpr int THREADS = 256;

// ROW, SECOND_ROW: elements of a row of the node and of the source; a row may be the whole tensor.
// TOTAL: all elements. STEP: how many to convert at once; they are in one row in both tensors.
enum { TYPE, SECOND_TYPE, ROW, SECOND_ROW, TOTAL, STEP };

KERNEL(convert, THREADS, 1) {
    const int type = static_cast<int>(p.param[TYPE].i);
    const int from = static_cast<int>(p.param[SECOND_TYPE].i);
    const int step = static_cast<int>(p.param[STEP].i);
    const Walk out = walk_of(p.t[0], p.t[0], p.param[ROW].i, p.t[0].nb[0]);
    const Walk in = walk_of(p.t[1], p.t[1], p.param[SECOND_ROW].i, p.t[1].nb[0]);
    const u32 n = static_cast<u32>(p.param[TOTAL].i / step);
    for (u32 u = thread_of_grid(); u < n; u += threads_of_grid()) {
        Spot at = spot_of(in, u * step);
        float v[UNIT];
        load_any(from, at.row, at.i0, in.nb0, step, v);
        store_unit(type, address_of(out, u * step), out.nb0, step, v);
    }
}

// Into blocks of 32, one for each warp. Rows of the node are whole blocks.
KERNEL(quantize, THREADS, 1) {
    const int type = static_cast<int>(p.param[TYPE].i);
    const int from = static_cast<int>(p.param[SECOND_TYPE].i);
    const Walk out = walk_of(p.t[0], p.t[0], p.param[ROW].i / WARP, p.t[0].nb[0]);
    const Walk in = walk_of(p.t[1], p.t[1], p.param[SECOND_ROW].i, p.t[1].nb[0]);
    const u32 n = static_cast<u32>(p.param[TOTAL].i);
    for (u32 e = thread_of_grid(); e < n; e += threads_of_grid())
        encode_block(type, address_of(out, e / WARP), load_value(from, address_of(in, e)));
}
