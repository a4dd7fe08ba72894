// Copies that keep the type, bit for bit: CPY, CONT and DUP between any layouts, CONCAT, REPEAT.
//
// Contiguous rows are moved in words of up to 16 bytes, as large as addresses and strides allow,
// other rows element by element.
#include "walk.cuh"

constexpr int THREADS = 256;

// SIZE: bytes of an element. RUN: bytes that are contiguous in both tensors, or 0. ROW, SECOND_ROW:
// bytes of a row of the node and of the source; a row may be the whole tensor. TOTAL: bytes to
// copy. OFFSET: where in the node they go. LIKE: the tensor whose shape they have.
enum { SIZE, RUN, ROW, SECOND_ROW, TOTAL, OFFSET, LIKE };

DEVICE u64 strides_of(const Tensor &t) { return static_cast<u64>(t.nb[1] | t.nb[2] | t.nb[3]); }

// Bytes of a word: the largest that every address and stride is a multiple of.
DEVICE int word_size(const Params &p) {
    if (p.param[RUN].i == 0) return static_cast<int>(p.param[SIZE].i);
    u64 bits = reinterpret_cast<u64>(p.t[0].data) | reinterpret_cast<u64>(p.t[1].data) |
               static_cast<u64>(p.param[RUN].i | p.param[OFFSET].i | 16);
    if (p.param[ROW].i < p.param[TOTAL].i) bits |= strides_of(p.t[0]);
    if (p.param[SECOND_ROW].i < p.param[TOTAL].i) bits |= strides_of(p.t[1]);
    return static_cast<int>(bits & (~bits + 1));
}

// The tensor as rows of words.
template <typename W> DEVICE Walk words_of(const Params &p, int tensor, int like, int row) {
    const Tensor &t = p.t[tensor];
    bool lies_in_a_line = p.param[RUN].i != 0;
    i64 n0 = p.param[row].i / static_cast<i64>(sizeof(W));
    i64 nb0 = lies_in_a_line ? static_cast<i64>(sizeof(W)) : t.nb[0];
    return walk_of(t, p.t[like], n0, nb0);
}

template <typename W> DEVICE void copy_words(const Params &p) {
    Walk out = words_of<W>(p, 0, static_cast<int>(p.param[LIKE].i), ROW);
    Walk in = words_of<W>(p, 1, 1, SECOND_ROW);
    out.data += p.param[OFFSET].i;
    u32 n = static_cast<u32>(p.param[TOTAL].i / static_cast<i64>(sizeof(W)));
    for (u32 e = thread_of_grid(); e < n; e += threads_of_grid())
        *reinterpret_cast<W *>(address_of(out, e)) =
            *reinterpret_cast<const W *>(address_of(in, e));
}

KERNEL(copy, THREADS, 1) {
    switch (word_size(p)) {
        case 16: copy_words<uint4>(p); break;
        case 8: copy_words<u64>(p); break;
        case 4: copy_words<u32>(p); break;
        case 2: copy_words<u16>(p); break;
        default: copy_words<u8>(p);
    }
}

template <typename W> DEVICE void repeat_words(const Params &p) {
    const Tensor &a = p.t[1];
    Walk out = words_of<W>(p, 0, 0, ROW), in = words_of<W>(p, 1, 1, SECOND_ROW);
    u32 n = static_cast<u32>(p.param[TOTAL].i / static_cast<i64>(sizeof(W)));
    for (u32 e = thread_of_grid(); e < n; e += threads_of_grid()) {
        u32 r = e / out.n0, r2 = r / out.n1;
        Place at = {e - r * out.n0, r - r2 * out.n1, r2 % out.n2, r2 / out.n2, 1};
        const char *from = row_at(a, at) + wrapped(at.i0, in.n0) * in.nb0;
        *reinterpret_cast<W *>(address_of(out, e)) = *reinterpret_cast<const W *>(from);
    }
}

// ROW and SECOND_ROW are true rows here, never the whole tensor.
KERNEL(repeat, THREADS, 1) {
    switch (word_size(p)) {
        case 16: repeat_words<uint4>(p); break;
        case 8: repeat_words<u64>(p); break;
        case 4: repeat_words<u32>(p); break;
        case 2: repeat_words<u16>(p); break;
        default: repeat_words<u8>(p);
    }
}
