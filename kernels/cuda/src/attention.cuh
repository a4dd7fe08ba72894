// Shared by the attention kernels: positions of tokens, scores, and how sums over positions are
// combined and stored in scratch memory.
//
// A query is a head of a token. It attends to a span of positions, which it processes in partitions
// of 256, each with its own sums. Those of a segment of partitions are combined in ascending order,
// then the sums of segments, whichever block computed them. Exponentials are powers of 2: the
// factors of scores contain log2(e). Does not know how partitions are computed.
#pragma once
#include "device.cuh"

constexpr int PARTITION = 256;
constexpr float LOWEST = -3.402823466e+38f;  // below every score, but finite: can be subtracted

// tensors besides the result [head_dim_v, n_head, n_tokens], see graph/ops/matrix.py
constexpr int Q = 1, K = 2, V = 3, PAGES = 4, SEQ = 5, POS = 6, BEGIN = 7, END = 8, SINKS = 9;

// parameters of all attention kernels, set by kernels/cuda/ops/attention.py
constexpr int SCALE = 0;      // factor of products
constexpr int SOFTCAP = 1;    // factor of tanh, or 0
constexpr int MAX_BIAS = 2;   // the largest bias of ALiBi
constexpr int PAGE_SIZE = 3;
constexpr int N_PAGES = 4;    // pages in the pool
constexpr int N_RECORDS = 5;  // sums of all heads that fit in scratch memory
constexpr int HAS_SINKS = 6;  // 1 if heads have sinks
constexpr int SEGMENT = 7;    // positions of a segment: a power of 2

// --- tokens and what they see ---

DEVICE int int_at(const Tensor &t, i64 i) {
    return *reinterpret_cast<const int *>(t.data + i * t.nb[0]);
}

// The positions that a token sees: begin ... end - 1.
struct Span {
    int begin, end;

    DEVICE bool is_empty() const { return begin >= end; }
    // How many units of `size` positions it touches.
    DEVICE int n_units(int size) const {
        return is_empty() ? 0 : (end - 1) / size - begin / size + 1;
    }
};

DEVICE i64 n_positions(const Params &p) { return p.t[PAGES].ne[0] * p.param[PAGE_SIZE].i; }

// The span of a token; an empty one if it is invalid.
DEVICE Span span_of(const Params &p, int token) {
    const int begin = int_at(p.t[BEGIN], token), end = int_at(p.t[END], token);
    if (begin < 0 || begin > end || end > n_positions(p)) return {0, 0};
    return {begin, end};
}

// Report a token whose sequence or span is invalid. True if it is valid.
DEVICE bool check_token(const Params &p, int token) {
    const int seq = int_at(p.t[SEQ], token);
    const int begin = int_at(p.t[BEGIN], token), end = int_at(p.t[END], token);
    const i64 n_seqs = p.t[PAGES].ne[1], n = n_positions(p);
    if (seq < 0 || seq >= n_seqs) fail(p, seq, n_seqs);
    else if (end < 0 || end > n) fail(p, end, n + 1);
    else if (begin < 0 || begin > end) fail(p, begin, end + 1);
    else return true;
    return false;
}

// The i-th page of a sequence; it may be out of range.
DEVICE int page_of(const Params &p, int seq, u32 i) {
    const Tensor &pages = p.t[PAGES];
    return *reinterpret_cast<const int *>(pages.data + i * pages.nb[0] + seq * pages.nb[1]);
}

DEVICE bool is_page(const Params &p, int page) { return page >= 0 && page < p.param[N_PAGES].i; }

// --- scores ---

// ALiBi's slope of a head (arXiv 2108.12409), times log2(e). Heads beyond the largest power of two
// take every other slope of twice as many, as in ggml.
DEVICE float slope_of(const Params &p, int head) {
    const float max_bias = static_cast<float>(p.param[MAX_BIAS].f);
    const int n_head = static_cast<int>(p.t[Q].ne[1]);
    int n = 1;
    while (2 * n <= n_head) n *= 2;
    const float i = head < n ? head + 1.0f : head - n + 0.5f;
    return exp2f(-max_bias * i / static_cast<float>(n)) * 1.44269504f;
}

// Scores, in powers of 2, from products of queries and keys.
struct Scores {
    float scale, softcap;
    bool is_biased;

    DEVICE explicit Scores(const Params &p)
        : scale(static_cast<float>(p.param[SCALE].f)),
          softcap(static_cast<float>(p.param[SOFTCAP].f)),
          is_biased(p.param[MAX_BIAS].f > 0) {}

    DEVICE bool is_plain() const { return !is_biased && softcap <= 0; }

    // `distance`: position of the key minus position of the query.
    DEVICE float of(float product, float slope, int distance) const {
        float s = product * scale;
        if (softcap > 0) s = softcap * tanhf(s);
        return is_biased ? fmaf(slope, static_cast<float>(-abs(distance)), s) : s;
    }
};

// --- sums: the largest score; relative to it, the exponentials' total and the weighted values ---

// Factors for adding two sums: over the positions `before`, and over the ones that come `next`. An
// empty sum (LOWEST, 0, 0) on either side changes no bit of the other.
struct Combination {
    float before, next;

    Combination() = default;
    DEVICE Combination(float &largest, float largest_next) {
        const float both = fmaxf(largest, largest_next);
        before = exp2f(largest - both);
        next = exp2f(largest_next - both);
        largest = both;
    }
    DEVICE float add(float sum, float sum_next) const { return fmaf(sum_next, next, sum * before); }
};

// A head's sink: the score of one more position, whose value is zero. Minus infinity changes no sum.
DEVICE float sink_of(const Params &p, int head) {
    const Tensor &sinks = p.t[SINKS];
    if (p.param[HAS_SINKS].i == 0) return as_float(0xff800000u);
    return *reinterpret_cast<const float *>(sinks.data + head * sinks.nb[0]);
}

// The reciprocal of the total with the sink's exponential.
DEVICE float inverse_of(float total, float largest, float sink) {
    return 1.0f / (total + exp2f(fmaf(sink, 1.44269504f, -largest)));
}

// Add the totals of the 4 lanes that share two rows.
DEVICE void add_over_quads(float (&total)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += shfl_xor(total[half], 1);
        total[half] += shfl_xor(total[half], 2);
    }
}

// A mean of values. A zero loses its sign, which depends on how many sums were combined.
DEVICE float mean_of(float value, float inverse_total) { return value * inverse_total + 0.0f; }

// --- records: sums in scratch memory, if the positions of a token are divided among blocks ---

DEVICE int segment_size(const Params &p) { return static_cast<int>(p.param[SEGMENT].i); }

// The units of positions whose sums are records: partitions, or segments if there is no room for
// all partitions that the step's tokens see. Without room for segments, `size` is 0, and the first
// of the blocks computes all positions in order. `before`: records of the tokens before.
struct RecordUnits {
    int size, before;

    // Count units of this size. True if there is room. A whole warp computes it.
    DEVICE bool have_room(int of_size, const Params &p, int token) {
        const int n_tokens = static_cast<int>(p.t[Q].ne[2]);
        int all = 0;
        size = of_size, before = 0;
        for (int t = lane_id(); t < n_tokens; t += WARP) {
            const int n = span_of(p, t).n_units(size);
            all += n;
            before += t < token ? n : 0;
        }
        for (int mask = WARP / 2; mask > 0; mask /= 2) {
            all += shfl_xor(all, mask);
            before += shfl_xor(before, mask);
        }
        return all <= p.param[N_RECORDS].i;
    }
};

DEVICE RecordUnits record_units_of(const Params &p, int token) {
    RecordUnits units;
    if (units.have_room(PARTITION, p, token)) return units;
    if (units.have_room(segment_size(p), p, token)) return units;
    return {0, 0};
}

// The record of a head and a unit; units are counted over all tokens.
struct Record {
    float *sums, *values;  // the largest score and the total; head_dim_v values

    DEVICE Record(const Params &p, int unit, int head) {
        const i64 n_head = p.t[0].ne[1], i = unit * n_head + head;
        float *const scratch = reinterpret_cast<float *>(p.scratch);
        sums = scratch + 2 * i;
        values = scratch + 2 * p.param[N_RECORDS].i * n_head + i * p.t[0].ne[0];
    }
};
