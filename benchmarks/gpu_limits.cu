// The limits of a GPU for a decode step: the time of each dependent node of a captured graph, and
// the bandwidth of copies and of reads.
//
//   nvcc -O3 -std=c++17 -arch=native -o build/gpu_limits benchmarks/gpu_limits.cu && build/gpu_limits
//
// Prints a line of JSON. Each time is the median of TRIALS runs. From sm_90 on, it also measures
// programmatic dependent launch and bulk copies to shared memory.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

constexpr int TRIALS = 7;
constexpr int NODES = 1000;               // of a measured graph
constexpr size_t BYTES = size_t(2) << 30;  // read by each kernel
constexpr int THREADS = 256;
constexpr int STAGES = 4;           // of bulk copies
constexpr int STAGE_BYTES = 16384;  // of one bulk copy

#define CHECK(call) check(call, #call)

static void check(cudaError_t code, const char* call) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(code));
    exit(1);
}

// --- kernels ---

__global__ void tick(int* count) {
    if (threadIdx.x == 0 && blockIdx.x == 0) *count += 1;
}

__global__ void tick_early(int* count) {  // with programmatic dependent launch
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (threadIdx.x == 0 && blockIdx.x == 0) *count += 1;
}

__device__ void keep(uint32_t sum, int* count) {
    if (sum == 0x12345678u) *count = 1;  // the data is zero; the compiler cannot know that
}

template <int N>
__global__ void read(const uint4* data, size_t n, int* count) {
    uint32_t sum = 0;
    const size_t step = size_t(gridDim.x) * THREADS;
    for (size_t i = size_t(blockIdx.x) * THREADS + threadIdx.x; i + (N - 1) * step < n; i += N * step) {
        uint4 v[N];
#pragma unroll
        for (int j = 0; j < N; j++) v[j] = __ldcs(data + i + j * step);
#pragma unroll
        for (int j = 0; j < N; j++) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    keep(sum, count);
}

__device__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__global__ void read_bulk(const char* data, size_t n_tiles, int* count) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char stages[];
    __shared__ __align__(8) uint64_t full[STAGES];
    auto fetch = [&](size_t tile, int stage) {
        const uint32_t bar = shared_address(&full[stage]);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                     "r"(STAGE_BYTES) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
            ::"r"(shared_address(stages + stage * STAGE_BYTES)), "l"(data + tile * STAGE_BYTES),
            "r"(STAGE_BYTES), "r"(bar) : "memory");
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[s])));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        for (int s = 0; s < STAGES; s++) {
            const size_t tile = blockIdx.x + size_t(s) * gridDim.x;
            if (tile < n_tiles) fetch(tile, s);
        }
    }
    __syncthreads();
    uint32_t sum = 0, phase = 0;
    int stage = 0;
    for (size_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        uint32_t done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                         "selp.u32 %0, 1, 0, p; }"
                         : "=r"(done) : "r"(shared_address(&full[stage])), "r"(phase) : "memory");
        const uint4* v = reinterpret_cast<const uint4*>(stages + stage * STAGE_BYTES);
        for (int i = threadIdx.x; i < STAGE_BYTES / 16; i += THREADS)
            sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        __syncthreads();
        const size_t next = tile + size_t(STAGES) * gridDim.x;
        if (threadIdx.x == 0 && next < n_tiles) fetch(next, stage);
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    keep(sum, count);
#endif
}

// --- measuring ---

using Work = std::function<void(cudaStream_t)>;

static float median_us(cudaStream_t stream, const Work& work) {
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i <= TRIALS; i++) {
        CHECK(cudaEventRecord(begin, stream));
        work(stream);
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i) times.push_back(1e3f * ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static float node_us(cudaStream_t stream, const Work& node) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < NODES; i++) node(stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    const float us = median_us(stream, [&](cudaStream_t s) { CHECK(cudaGraphLaunch(exec, s)); });
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return us / NODES;
}

static void launch_early(cudaStream_t stream, int blocks, int* count) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = THREADS;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, tick_early, count));
}

int main() {
    cudaDeviceProp gpu;
    CHECK(cudaGetDeviceProperties(&gpu, 0));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int *count, *pinned;
    uint4 *data, *copy;
    CHECK(cudaMalloc(&count, 256));
    CHECK(cudaMallocHost(&pinned, 256));
    CHECK(cudaMalloc(&data, BYTES));
    CHECK(cudaMalloc(&copy, BYTES));
    CHECK(cudaMemset(data, 0, BYTES));
    const int n = gpu.multiProcessorCount;
    const bool hopper = gpu.major >= 9;
    printf("{\"gpu\": \"%s\", \"n_sm\": %d, \"l2_mib\": %d", gpu.name, n, gpu.l2CacheSize >> 20);
    auto us = [](const char* name, float value) { printf(", \"%s_us\": %.2f", name, value); };
    auto gbs = [&](const char* name, int times, const Work& work) {
        printf(", \"%s_gbs\": %.0f", name, times * double(BYTES) / median_us(stream, work) / 1e3);
    };
    us("node", node_us(stream, [&](cudaStream_t s) { tick<<<1, THREADS, 0, s>>>(count); }));
    us("node_of_all_sm", node_us(stream, [&](cudaStream_t s) { tick<<<n, THREADS, 0, s>>>(count); }));
    if (hopper) us("node_early", node_us(stream, [&](cudaStream_t s) { launch_early(s, 1, count); }));
    if (hopper)
        us("node_early_of_all_sm", node_us(stream, [&](cudaStream_t s) { launch_early(s, n, count); }));
    us("copy_to_host_node", node_us(stream, [&](cudaStream_t s) {
           CHECK(cudaMemcpyAsync(pinned, count, 32, cudaMemcpyDeviceToHost, s));
       }));
    gbs("copy", 2, [&](cudaStream_t s) {
        CHECK(cudaMemcpyAsync(copy, data, BYTES, cudaMemcpyDeviceToDevice, s));
    });
    gbs("read", 1, [&](cudaStream_t s) { read<4><<<8 * n, THREADS, 0, s>>>(data, BYTES / 16, count); });
    gbs("read_8", 1, [&](cudaStream_t s) { read<8><<<8 * n, THREADS, 0, s>>>(data, BYTES / 16, count); });
    if (hopper) {
        const int shared = STAGES * STAGE_BYTES;
        CHECK(cudaFuncSetAttribute(read_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
        gbs("read_bulk", 1, [&](cudaStream_t s) {
            read_bulk<<<3 * n, THREADS, shared, s>>>((const char*)data, BYTES / STAGE_BYTES, count);
        });
    }
    printf("}\n");
    CHECK(cudaDeviceSynchronize());
}
