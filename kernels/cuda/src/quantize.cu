// Columns of activations in form q8 (blocks.cuh). A column is quantized once for all products that
// read it. Compiled with -DT=F32 (F16, BF16). The bits of a block depend on its 32 values alone.
#include "blocks.cuh"

constexpr int N_VALUES = CHUNK / WARP;       // values of a thread
constexpr int QUAD = BLOCK / N_VALUES;       // threads of a block of values
constexpr float LARGEST = 127.0f;
constexpr float SMALLEST = 1e-30f;           // the inverse of a smaller scale may be infinite

DEVICE u32 larger(u32 a, u32 b) { return a > b ? a : b; }

DEVICE int quantized(float x, float inverse) {
    return static_cast<int>(fminf(fmaxf(rintf(x * inverse), -LARGEST), LARGEST));
}

// Load values from `first` on of a row of k, zeros past its end.
DEVICE void load_values(float (&x)[N_VALUES], const char *row, i64 first, i64 k) {
    const T::stored *from = reinterpret_cast<const T::stored *>(row) + first;
    if (sizeof(T::stored) == 4 && reinterpret_cast<u64>(from) % 16 == 0 && first + N_VALUES <= k) {
        const float4 a = reinterpret_cast<const float4 *>(from)[0];
        const float4 b = reinterpret_cast<const float4 *>(from)[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < N_VALUES; i++) x[i] = first + i < k ? T::load(from + i) : 0.0f;
}

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

    u32 largest = 0;  // as bits: NaN is larger than all numbers, so the block's scale is NaN
#pragma unroll
    for (int i = 0; i < N_VALUES; i++) largest = larger(largest, as_bits(x[i]) & 0x7fffffff);
    for (int mask = QUAD / 2; mask > 0; mask /= 2) {
        largest = larger(largest, shfl_xor(largest, mask));
    }
    const float scale = as_float(largest) / LARGEST;
    const float inverse = scale > SMALLEST ? 1.0f / scale : 0.0f;

    int sum = 0;
    u32 words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < N_VALUES; i++) {
        const int q = quantized(x[i], inverse);
        sum += q;
        words[i / 4] |= (static_cast<u32>(q) & 255) << (8 * (i % 4));
    }
    for (int mask = QUAD / 2; mask > 0; mask /= 2) sum += shfl_xor(sum, mask);

    char *to = p.prepared[0] + column * q8_column_bytes(kp);
    u32 *values = reinterpret_cast<u32 *>(to + first);
    values[0] = words[0];
    values[1] = words[1];
    if (lane_id() % QUAD == 0) {
        const_cast<float *>(q8_scales(to, kp))[first / BLOCK] = scale;
        const_cast<int *>(q8_sums(to, kp))[first / BLOCK] = sum;
    }
}
