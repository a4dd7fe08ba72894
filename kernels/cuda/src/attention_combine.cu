// The last step of attention whose positions were divided among blocks: combine their records in
// ascending order, within segments and then over them. Tested by tests/kernels/test_cuda_attention.py.
#include "attention.cuh"

// Sums of a head, with one of its values.
struct Sum {
    float largest, total, value;

    DEVICE void add(const Sum &next) {
        const Combination with(largest, next.largest);
        total = with.add(total, next.total);
        value = with.add(value, next.value);
    }
};

// Grid: (token, part of its heads' values). A thread has one value.
KERNEL(attention_combine, 128, 1) {
    const Tensor &out = p.t[0];
    const int token = static_cast<int>(blockIdx.x), head_dim = static_cast<int>(out.ne[0]);
    const RecordUnits units = record_units_of(p, token);
    if (units.size == 0) return;
    const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
    const int head = i / head_dim, d = i - head * head_dim;
    const Span span = span_of(p, token);
    if (head >= out.ne[1] || span.is_empty()) return;
    Sum all = {LOWEST, 0.0f, 0.0f};
    int unit = units.before;
    for (int begin = span.begin / units.size * units.size; begin < span.end;) {
        Sum segment = {LOWEST, 0.0f, 0.0f};
        const int after = (begin / segment_size(p) + 1) * segment_size(p);
        const int end = after < span.end ? after : span.end;
#pragma unroll 8
        for (; begin < end; begin += units.size, unit++) {
            const Record record(p, unit, head);
            segment.add({record.sums[0], record.sums[1], record.values[d]});
        }
        all.add(segment);
    }
    float *const to = reinterpret_cast<float *>(at(out, 0, head, token, 0));
    to[d] = mean_of(all.value, inverse_of(all.total, all.largest, sink_of(p, head)));
}
