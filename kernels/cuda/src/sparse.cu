// Sparse attention's choice of positions (graph/ops/sparse.py), in float32. Tested by
// tests/kernels/test_sparse.py.
#include "dequantize.cuh"

constexpr int THREADS = 256;
constexpr int HEADS = 8;  // heads that a thread sums at a time

// The page that has a position of a sequence; it may be invalid.
DEVICE int page_at(const Tensor &pages, int seq, i64 i) {
    return *reinterpret_cast<const int *>(pages.data + i * pages.nb[0] + seq * pages.nb[1]);
}

DEVICE int int_at(const Tensor &t, i64 i) {
    return *reinterpret_cast<const int *>(t.data + i * t.nb[0]);
}

enum { PAGE_SIZE, TOP_K, TYPE };

DEVICE float score_of(const Params &p, int t, const char *row) {
    const Tensor &q = p.t[1], &weights = p.t[3];
    const int size = static_cast<int>(q.ne[0]), n_head = static_cast<int>(q.ne[1]);
    const int type = static_cast<int>(p.param[TYPE].i);
    const float *w = reinterpret_cast<const float *>(at(weights, 0, t, 0, 0));
    float total = 0.0f;
    for (int first = 0; first < n_head; first += HEADS) {
        float sums[HEADS] = {};
        for (int i = 0; i < size; i += UNIT) {
            const int n = smaller(UNIT, size - i);
            float key[UNIT];
            load_any(type, row, i, p.t[2].nb[0], n, key);
            for (int h = 0; h < HEADS && first + h < n_head; h++) {
                const float *head = reinterpret_cast<const float *>(at(q, 4 * i, first + h, t, 0));
                for (int j = 0; j < n; j++) sums[h] = fmaf(head[j], key[j], sums[h]);
            }
        }
        for (int h = 0; h < HEADS && first + h < n_head; h++)
            total = fmaf(fmaxf(sums[h], 0.0f), w[first + h], total);
    }
    return fmaxf(total, -3.4028234663852886e38f);  // also for NaN
}

// A thread has a position of a token. Grid: (token, block of positions).
KERNEL(index_scores, THREADS, 1) {
    const Tensor &out = p.t[0], &k = p.t[2], &pages = p.t[4];
    const int t = static_cast<int>(blockIdx.x);
    const i64 position = blockIdx.y * static_cast<i64>(THREADS) + threadIdx.x, n = out.ne[0];
    const int seq = int_at(p.t[5], t), end = int_at(p.t[6], t);
    if (seq < 0 || seq >= pages.ne[1] || end < 0 || end > n) {
        const bool is_seq = seq < 0 || seq >= pages.ne[1];
        if (threadIdx.x == 0) fail(p, is_seq ? seq : end, is_seq ? pages.ne[1] : n + 1);
        return;
    }
    if (position >= n) return;
    float score = as_float(0xff800000u);
    if (position < end) {
        score = 0.0f;
        if (end > p.param[TOP_K].i) {
            const i64 page_size = p.param[PAGE_SIZE].i, n_pages = k.ne[1] / page_size;
            const int page = page_at(pages, seq, position / page_size);
            if (page < 0 || page >= n_pages) {
                fail(p, page, n_pages);
                return;
            }
            score = score_of(p, t, k.data + (page * page_size + position % page_size) * k.nb[1]);
        }
    }
    *reinterpret_cast<float *>(at(out, 4 * position, t, 0, 0)) = score;
}

// Grid: (token, block of positions).
KERNEL(page_cells, THREADS, 1) {
    const Tensor &out = p.t[0], &positions = p.t[1], &pages = p.t[2];
    const int t = static_cast<int>(blockIdx.x), seq = int_at(p.t[3], t);
    const i64 i = blockIdx.y * static_cast<i64>(THREADS) + threadIdx.x;
    const i64 page_size = p.param[PAGE_SIZE].i, limit = pages.ne[0] * page_size;
    if (seq < 0 || seq >= pages.ne[1]) {
        if (threadIdx.x == 0) fail(p, seq, pages.ne[1]);
        return;
    }
    if (i >= out.ne[0]) return;
    const int position = *reinterpret_cast<const int *>(at(positions, 4 * i, t, 0, 0));
    if (position < 0 || position >= limit) {
        fail(p, position, limit);
        return;
    }
    const i64 page = page_at(pages, seq, position / page_size);
    *reinterpret_cast<int *>(at(out, 4 * i, t, 0, 0)) =
        static_cast<int>(page * page_size + position % page_size);
}
