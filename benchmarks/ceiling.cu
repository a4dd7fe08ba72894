// Measures the limit of a device's tensor cores with chains of independent products on registers.
#include "device.cuh"

constexpr int CHAINS = 8;  // enough to hide the latency of a product

KERNEL(rate_s8, 256, 2) {
    int d[CHAINS][4] = {};
    u32 a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = threadIdx.x * 0x01010101u + i;
    for (int i = 0; i < 2; i++) b[i] = threadIdx.x + i;
    for (i64 n = 0; n < p.param[0].i; n++)
#pragma unroll
        for (int c = 0; c < CHAINS; c++) mma_s8_k32(d[c], a, b);
    int sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
    if (sum == 42) p.error[3] = 1;  // keeps the compiler from removing the products
}

KERNEL(rate_f16, 256, 2) {
    float d[CHAINS][4] = {};
    u32 a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = threadIdx.x + i;
    for (int i = 0; i < 2; i++) b[i] = threadIdx.x + i;
    for (i64 n = 0; n < p.param[0].i; n++)
#pragma unroll
        for (int c = 0; c < CHAINS; c++) mma_f16(d[c], a, b);
    float sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
    if (sum == 42.0f) p.error[3] = 1;
}
