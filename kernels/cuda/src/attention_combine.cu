// The last step of attention whose partitions were divided among blocks: combine their records in
// ascending order. Tested by tests/kernels/test_cuda_attention.py.
#include "attention.cuh"

// Grid: (token, part of its heads' values). A thread has one value.
KERNEL(attention_combine, 128, 1) {
    const Tensor &out = p.t[0];
    const int token = static_cast<int>(blockIdx.x), head_dim = static_cast<int>(out.ne[0]);
    const PartitionCount count(p, token);
    if (!count.has_room(p)) return;
    const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    const int head = i / head_dim, d = i - head * head_dim;
    const Span span = span_of(p, token);
    if (head >= out.ne[1] || span.is_empty()) return;
    float largest = LOWEST, total = 0.0f, value = 0.0f;
#pragma unroll 8
    for (int n = 0; n < span.n_partitions(); n++) {
        const Record record(p, count.before + n, head);
        const Combination with(largest, record.sums[0]);
        total = with.add(total, record.sums[1]);
        value = with.add(value, record.values[d]);
    }
    float *const to = reinterpret_cast<float *>(at(out, 0, head, token, 0));
    to[d] = mean_of(value, inverse_of(total, largest, sink_of(p, head)));
}
