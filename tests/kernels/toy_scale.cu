// A kernel for the tests of plans, devices and backends: y = x * p.param[0].f, and where an x is
// 666, a bad index that it reports.
#include "device.cuh"

KERNEL(toy_scale, 32, 1) {
    const float *x = reinterpret_cast<const float *>(p.t[1].data);
    float *y = reinterpret_cast<float *>(p.t[0].data);
    for (i64 i = threadIdx.x; i < p.t[0].ne[0] * n_rows(p.t[0]); i += 32) {
        if (x[i] == 666.0f) fail(p, 666, 42);
        y[i] = x[i] * static_cast<float>(p.param[0].f);
    }
}
