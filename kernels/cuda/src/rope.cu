// Rotary position embedding: ROPE of F32 and F16, with pairs of neighbors or of halves. Also heads
// of few tokens, rotated or not, into rows: of a cache, or of ROPE's result.
//
// An angle is the position times the pair's frequency, in turns and in float64. Only its fraction
// matters, which is rounded to float32.
#include "encode.cuh"
#include "set_rows.cuh"

constexpr int MAX_THREADS = 256;
constexpr double TURN = 6.283185307179586;

// RATIO: frequency of a pair / frequency of the pair before it. YaRN: pairs up to LOW are not
// scaled, pairs from HIGH on are, those between are mixed. MAGNITUDE: factor of cosines and sines.
// NEOX: pairs are of halves. TYPE: of elements, or of the rows. N_HEADS: of a thread or a block.
// Then those of store_heads: bytes of an index (0: rows are tokens), all heads of a token, and bytes
// from one head, token and row to the next.
enum {
    N_DIMS, HAS_FACTORS, RATIO, FREQ_SCALE, EXT_FACTOR, LOW, HIGH, MAGNITUDE, NEOX, TYPE, N_HEADS,
    ID_BYTES, ALL_HEADS, HEAD_BYTES, TOKEN_BYTES, ROW_BYTES
};

struct Rotation {
    float cos, sin;
};

// Two elements of a head that are rotated together. From N_DIMS on, pairs are neighbors that are
// not rotated; the last element of an odd number is alone.
struct Pair {
    int first, second;
    bool turns, is_whole;
};

// Cosine and sine of 2 pi `turns`, for turns in -0.5..0.5: the polynomials of Cephes' cosf and
// sinf, within an eighth of a turn of the nearest quarter turn.
DEVICE Rotation rotation_of(float turns) {
    float quarters = rintf(turns * 4.0f);
    float a = (turns - quarters * 0.25f) * static_cast<float>(TURN), z = a * a;
    float s = fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f);
    s = fmaf(s, z, -1.6666654611e-1f);
    s = fmaf(s * z, a, a);
    float c = fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f);
    c = fmaf(c, z, 4.166664568298827e-2f);
    c = fmaf(c * z, z, fmaf(-0.5f, z, 1.0f));
    switch (static_cast<int>(quarters) & 3) {
        case 0: return {c, s};
        case 1: return {-s, c};
        case 2: return {-c, -s};
        default: return {s, -c};
    }
}

// Frequency of pair `i`: turns at position 1.
DEVICE double frequency_of(const Params &p, int i) {
    double turns = 1.0 / TURN, ratio = p.param[RATIO].f;
    for (int n = i; n > 0; n /= 2) {
        if (n % 2) turns *= ratio;
        ratio *= ratio;
    }
    const Tensor &factors = p.t[3];
    if (p.param[HAS_FACTORS].i)
        turns /= *reinterpret_cast<const float *>(factors.data + i * factors.nb[0]);
    double ext = p.param[EXT_FACTOR].f;
    if (ext == 0.0) return turns * p.param[FREQ_SCALE].f;
    double ramp = (i - p.param[LOW].f) / fmax(0.001, p.param[HIGH].f - p.param[LOW].f);
    double mix = (1.0 - fmin(1.0, fmax(0.0, ramp))) * ext;
    return turns * p.param[FREQ_SCALE].f * (1.0 - mix) + turns * mix;
}

// Rotation of pair `i` in token `t`.
DEVICE Rotation rotation_of_pair(const Params &p, int i, i64 t) {
    const Tensor &pos = p.t[2];
    double turns = *reinterpret_cast<const int *>(pos.data + t * pos.nb[0]) * frequency_of(p, i);
    Rotation r = rotation_of(static_cast<float>(turns - rint(turns)));
    float magnitude = static_cast<float>(p.param[MAGNITUDE].f);
    return {r.cos * magnitude, r.sin * magnitude};
}

DEVICE Pair pair_of(const Params &p, int i, int n) {
    int n_dims = static_cast<int>(p.param[N_DIMS].i);
    if (2 * i >= n_dims) return {2 * i, 2 * i + 1, false, 2 * i + 1 < n};
    if (p.param[NEOX].i) return {i, i + n_dims / 2, true, true};
    return {2 * i, 2 * i + 1, true, true};
}

DEVICE void turn(const Rotation &r, float &a, float &b) {
    float x = a, y = b;
    a = x * r.cos - y * r.sin;
    b = x * r.sin + y * r.cos;
}

// A thread rotates one pair in N_HEADS heads of a token.
KERNEL(rope, MAX_THREADS, 1) {
    const Tensor &out = p.t[0], &x = p.t[1];
    const int type = static_cast<int>(p.param[TYPE].i), n = static_cast<int>(out.ne[0]);
    const u32 n_heads = static_cast<u32>(p.param[N_HEADS].i);
    const u32 n_pairs = (static_cast<u32>(n) + 1) / 2, n1 = static_cast<u32>(out.ne[1]);
    const u32 n_groups = (n1 + n_heads - 1) / n_heads, n_tokens = static_cast<u32>(out.ne[2]);
    u32 u = thread_of_grid(), group = u / n_pairs, token = group / n_groups;
    if (token >= n_tokens * static_cast<u32>(out.ne[3])) return;
    int i = static_cast<int>(u - group * n_pairs);
    u32 begin = (group - token * n_groups) * n_heads, end = smaller(begin + n_heads, n1);
    u32 batch = token / n_tokens, t = token - batch * n_tokens;
    const Pair pair = pair_of(p, i, n);
    Rotation r = {};
    if (pair.turns) r = rotation_of_pair(p, i, t);
    for (u32 head = begin; head < end; head++) {
        const char *from = at(x, 0, head, t, batch);
        char *to = at(out, 0, head, t, batch);
        float a = load_value(type, from + pair.first * x.nb[0]), b = 0.0f;
        if (pair.is_whole) b = load_value(type, from + pair.second * x.nb[0]);
        if (pair.turns) turn(r, a, b);
        store_value(type, to + pair.first * out.nb[0], a);
        if (pair.is_whole) store_value(type, to + pair.second * out.nb[0], b);
    }
}

// Tensors: rows, ROPE's sources (positions again if there are no factors), indices of rows.
// Grid: N_HEADS heads of a token. They are whole blocks of the rows' type.
MERGING_KERNEL(store_heads, MAX_THREADS, 1) {
    DYNAMIC_SHARED(float, heads);
    const Tensor &to = p.t[0], &x = p.t[1], &ids = p.t[4];
    const int n = static_cast<int>(x.ne[0]), n_heads = static_cast<int>(p.param[N_HEADS].i);
    const int all = static_cast<int>(p.param[ALL_HEADS].i), n_groups = (all + n_heads - 1) / n_heads;
    const int t = static_cast<int>(blockIdx.x) / n_groups;
    const int begin = (static_cast<int>(blockIdx.x) - t * n_groups) * n_heads;
    const int n_own = begin + n_heads < all ? n_heads : all - begin;
    i64 row = t;
    if (p.param[ID_BYTES].i != 0) {
        const Ids rows = {ids.data, ids.nb[0], static_cast<int>(p.param[ID_BYTES].i),
                          static_cast<int>(ids.ne[0])};
        row = target_of(p, rows, t, to.ne[1]);
        if (row < 0) return;
    }
    const char *const token = x.data + t * p.param[TOKEN_BYTES].i;
    const int n_pairs = (n + 1) / 2;
    for (int u = threadIdx.x; u < n_pairs * n_own; u += blockDim.x) {
        const int head = u / n_pairs, i = u - head * n_pairs;
        const float *const from =
            reinterpret_cast<const float *>(token + (begin + head) * p.param[HEAD_BYTES].i);
        float *const own = heads + head * n;
        const Pair pair = pair_of(p, i, n);
        float a = from[pair.first], b = pair.is_whole ? from[pair.second] : 0.0f;
        if (pair.turns) turn(rotation_of_pair(p, i, t), a, b);
        own[pair.first] = a;
        if (pair.is_whole) own[pair.second] = b;
    }
    sync_block();
    const int type = static_cast<int>(p.param[TYPE].i);
    char *const out = to.data + row * p.param[ROW_BYTES].i + encoded_size(type, begin * n);
    encode_row(type, heads, out, n_own * n);
}
