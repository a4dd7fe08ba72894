// Elements of a tensor by their index over all dimensions, for copies between tensors of different
// shapes and strides. An element may also be a word of a row's bytes.
#pragma once
#include "units.cuh"

struct Walk {
    char *data;
    u32 n0, n1, n2;
    i64 nb0, nb1, nb2, nb3;
};

struct Spot {
    char *row;
    u32 i0;
};

// A row has `n0` elements, `nb0` bytes apart; a contiguous tensor may be one row. The other
// dimensions have the shape of `like`.
DEVICE Walk walk_of(const Tensor &t, const Tensor &like, i64 n0, i64 nb0) {
    return {t.data,  static_cast<u32>(n0), static_cast<u32>(like.ne[1]),
            static_cast<u32>(like.ne[2]), nb0, t.nb[1], t.nb[2], t.nb[3]};
}

DEVICE Spot spot_of(const Walk &w, u32 e) {
    if (e < w.n0) return {w.data, e};
    u32 r = e / w.n0, r2 = r / w.n1;
    u32 i1 = r - r2 * w.n1, i3 = r2 / w.n2, i2 = r2 - i3 * w.n2;
    return {w.data + i1 * w.nb1 + i2 * w.nb2 + i3 * w.nb3, e - r * w.n0};
}

DEVICE char *address_of(const Walk &w, u32 e) {
    Spot at = spot_of(w, e);
    return at.row + at.i0 * w.nb0;
}
