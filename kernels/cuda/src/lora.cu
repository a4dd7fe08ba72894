// The products of LoRA adapters, LORA_A and LORA_B (graph/ops/matrix.py), in float32.
//
// A token's rows are multiplied only with those of its own adapters, each in one fixed order. So a
// token's bits depend on its own row and adapters. Tested by tests/kernels/test_ops.py.
#include "device.cuh"
#include "units.cuh"

constexpr int THREADS = 128;

// A warp computes a result: lane i adds elements i, i + 32, ... of a row, then lanes are added.
KERNEL(lora_a, THREADS, 8) {
    const Tensor &out = p.t[0], &a = p.t[1], &x = p.t[2], &scales = p.t[3], &parts = p.t[4];
    const i64 k = a.ne[0], rank = a.ne[1], count = rank * x.ne[1];
    const i64 warps = threads_of_grid() / WARP;
    for (i64 i = thread_of_grid() / WARP; i < count; i += warps) {
        const i64 j = i % rank, t = i / rank;
        const int part = reinterpret_cast<const int *>(parts.data)[j];
        if (part < 0 || part >= scales.ne[0]) {
            if (lane_id() == 0) fail(p, part, scales.ne[0]);
            continue;
        }
        const float scale = reinterpret_cast<const float *>(row_of(scales, t))[part];
        float sum = 0.0f;
        if (scale != 0.0f) {
            const float *row = reinterpret_cast<const float *>(row_of(a, j));
            const float *column = reinterpret_cast<const float *>(row_of(x, t));
            for (i64 e = lane_id(); e < k; e += WARP) sum = fmaf(row[e], column[e], sum);
            sum = scale * warp_sum(sum);
        }
        if (lane_id() == 0) reinterpret_cast<float *>(row_of(out, t))[j] = sum;
    }
}

// A thread computes an element of y. The node may overwrite y.
KERNEL(lora_b, THREADS, 8) {
    const Tensor &out = p.t[0], &y = p.t[1], &b = p.t[2], &z = p.t[3];
    const i64 n = out.ne[0], rank = z.ne[0], count = n * out.ne[1];
    for (i64 i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const i64 e = i % n, t = i / n;
        const float *weights = reinterpret_cast<const float *>(row_of(z, t));
        float sum = reinterpret_cast<const float *>(row_of(y, t))[e];
        for (i64 j = 0; j < rank; j++)
            if (weights[j] != 0.0f)
                sum = fmaf(weights[j], reinterpret_cast<const float *>(row_of(b, j))[e], sum);
        reinterpret_cast<float *>(row_of(out, t))[e] = sum;
    }
}
