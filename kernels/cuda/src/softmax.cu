// SOFT_MAX of scaled rows, plus a mask with ALiBi's slopes.
#include "rows.cuh"

enum { SCALE = THREADS + 1, MAX_BIAS, MASK_TYPE };

// The factor of a head's mask: 1, or ALiBi's if max_bias > 0 (arXiv 2108.12409). Heads beyond the
// largest power of two take every other slope of twice as many, as in ggml.
DEVICE float alibi_slope(int head, int n_head, float max_bias) {
    if (max_bias <= 0.0f) return 1.0f;
    int n = 1;
    while (2 * n <= n_head) n *= 2;
    return head < n ? exp2f(-max_bias * (head + 1) / n)
                    : exp2f(-max_bias * (2 * (head - n) + 1) / (2 * n));
}

// A row's mask and its factor.
struct Mask {
    int type;
    const char *row;  // null: no mask
    float slope;
};

// Scaled and masked elements of a unit, -inf past the row's end.
DEVICE Quad scores_of(const float *x, const Mask &mask, float scale, int i, int n) {
    Quad q = load_quad(x, i, n), m;
    if (mask.row) {
        const int size = mask.type == TYPE_F32 ? 4 : 2;
        const char *from = mask.row + static_cast<i64>(i) * size;
        load_unit(mask.type, from, size, smaller(UNIT, n - i), m.v);
    }
#pragma unroll
    for (int k = 0; k < UNIT; k++) {
        q.v[k] *= scale;
        if (mask.row) q.v[k] += mask.slope * m.v[k];
        if (i + k >= n) q.v[k] = -infinity();
    }
    return q;
}

DEVICE void soft_max(const Params &p, const Mask &mask, const Line &line, const float *x,
                     float *out) {
    __shared__ float maxima[WARP], sums[WARP];
    const int n = line.n;
    const float scale = static_cast<float>(p.param[SCALE].f);
    Quad held[HELD];
    auto scores = [&](int i) { return scores_of(x, mask, scale, i, n); };
    float largest = -infinity();
    each_unit(line, [&](int j, int i) {
        Quad q = scores(i);
        if (j < HELD) held[j] = q;
#pragma unroll
        for (int k = 0; k < UNIT; k++) largest = fmaxf(largest, q.v[k]);
    });
    largest = of_all<Max>(line, largest, maxima);
    auto exponentials = [&](Quad q, int i) {
#pragma unroll
        for (int k = 0; k < UNIT; k++) q.v[k] = i + k < n ? expf(q.v[k] - largest) : 0.0f;
        return q;
    };
    float sum = sum_of(line, sums, [&](int j, int i) {
        Quad q = exponentials(j < HELD ? held[j] : scores(i), i);
        if (j < HELD) held[j] = q;
        return total_of(q);
    });
    float factor = 1.0f / sum;
    each_unit(line, [&](int j, int i) {
        Quad q = j < HELD ? held[j] : exponentials(scores(i), i);
#pragma unroll
        for (int k = 0; k < UNIT; k++) q.v[k] *= factor;
        store_quad(out, i, n, q);
    });
}

KERNEL(soft_max_f32, MAX_THREADS, 1) {
    Line line;
    i64 r;
    if (!find_row(p, p.t[0], line, r)) return;
    Mask mask = {TYPE_F32, nullptr, 0.0f};
    soft_max(p, mask, line, floats(p.t[1], r), floats(p.t[0], r));
}

// The mask (tensor 2, F32 or F16) may have more rows than there are tokens, and fewer heads.
KERNEL(soft_max_masked_f32, MAX_THREADS, 1) {
    Line line;
    i64 r;
    if (!find_row(p, p.t[0], line, r)) return;
    const Tensor &out = p.t[0], &m = p.t[2];
    i64 token = r % out.ne[1], head = r / out.ne[1] % out.ne[2], batch = r / out.ne[1] / out.ne[2];
    Mask mask;
    mask.type = static_cast<int>(p.param[MASK_TYPE].i);
    mask.row = at(m, 0, token, head % m.ne[2], batch % m.ne[3]);
    mask.slope = alibi_slope(static_cast<int>(head), static_cast<int>(out.ne[2]),
                             static_cast<float>(p.param[MAX_BIAS].f));
    soft_max(p, mask, line, floats(p.t[1], r), floats(p.t[0], r));
}
