// Columns of activations in form q8 (blocks.cuh). A column is quantized once for all products that
// read it. Compiled with -DT=F32 (F16, BF16).
#include "quantize.cuh"

// Tensor 2's rows become columns in prepared 0. A warp makes a chunk; chunks of a column are made
// by neighboring warps.
KERNEL(quantize_q8, 128, 8) {
    const Tensor &src = p.t[2];
    const i64 k = src.ne[0], n_chunks = (k + CHUNK - 1) / CHUNK, kp = n_chunks * CHUNK;
    const i64 item = static_cast<i64>(blockIdx.x) * (blockDim.x / WARP) + warp_id();
    if (item >= n_chunks * n_rows(src)) return;
    const i64 column = item / n_chunks, first = item % n_chunks * CHUNK + N_VALUES * lane_id();
    float x[N_VALUES];
    load_values(x, row_of(src, column), first, k);
    const Quantized q(x);
    char *to = p.prepared[0] + column * q8_column_bytes(kp);
    *reinterpret_cast<uint2 *>(to + first) = q.values;
    if (q.has_scale()) {
        const_cast<float *>(q8_scales(to, kp))[first / BLOCK] = q.scale;
        const_cast<int *>(q8_sums(to, kp))[first / BLOCK] = q.sum;
    }
}
