// Emulates a CUDA grid on the host: the functions of kernels/cuda/src/device.cuh in plain C++.
//
// Blocks run in turn. The threads of a block are fibers: one runs until it waits for its warp or
// its block, then another does. Unwritten memory is full of 0xFF (NaN), so a missing barrier shows.
// Copies arrive as late as they may. Misuse is reported with the kernel, the block and the thread:
// a warp operation without all lanes in one line, a deadlock, an invalid or misaligned address; with
// GRID_RACES also a race (cuda_grid_races.hpp). Linux, g++ or clang++.
//
// cuda_grid.py compiles this file, followed by a kernel file in an unnamed namespace, so that
// libraries share nothing but the rooms of `grid_run`. Knows no driver. Tested by
// tests/kernels/test_cuda_grid.py.
#pragma once

#include "cuda_grid_threads.hpp"

// functions whose accesses are not looked at, and calls that find races
#ifdef GRID_RACES
#define GRID_UNSEEN __attribute__((no_sanitize("thread")))
#define GRID_ATOMIC GRID_COLD GRID_UNSEEN
#define GRID_RACE(call) grid::call
#include "cuda_grid_races.hpp"
#else
#define GRID_UNSEEN
#define GRID_ATOMIC GRID_INLINE
#define GRID_RACE(call) (void)0
#endif

// --- CUDA's vector types ---

#define GRID_VECTOR2(type, name, align)                  \
    struct alignas(align) name {                         \
        type x, y;                                       \
    };                                                   \
    GRID_INLINE name make_##name(type x, type y) { return {x, y}; }
#define GRID_VECTOR4(type, name, align)                  \
    struct alignas(align) name {                         \
        type x, y, z, w;                                 \
    };                                                   \
    GRID_INLINE name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

GRID_VECTOR2(signed char, char2, 2)
GRID_VECTOR2(unsigned char, uchar2, 2)
GRID_VECTOR2(short, short2, 4)
GRID_VECTOR2(unsigned short, ushort2, 4)
GRID_VECTOR2(int, int2, 8)
GRID_VECTOR2(unsigned int, uint2, 8)
GRID_VECTOR2(float, float2, 8)
GRID_VECTOR2(long long, longlong2, 16)
GRID_VECTOR2(unsigned long long, ulonglong2, 16)
GRID_VECTOR2(double, double2, 16)
GRID_VECTOR4(signed char, char4, 4)
GRID_VECTOR4(unsigned char, uchar4, 4)
GRID_VECTOR4(short, short4, 8)
GRID_VECTOR4(unsigned short, ushort4, 8)
GRID_VECTOR4(int, int4, 16)
GRID_VECTOR4(unsigned int, uint4, 16)
GRID_VECTOR4(float, float4, 16)

// --- the definitions of device.cuh's other branch ---

#define DEVICE inline __attribute__((unused))
#define LOOKUP_TABLE static const

#define KERNEL(name, threads, blocks_per_sm)                                        \
    static void name(const Params &p);                                              \
    GRID_STATE grid::Register name##_registered(#name, threads, [](const void *p) { \
        name(*static_cast<const Params *>(p));                                      \
    });                                                                             \
    static void name(const Params &p)

#define MERGING_KERNEL(name, threads, blocks_per_sm)                                       \
    static void name##_part(const Params &p);                                              \
    KERNEL(name, threads, blocks_per_sm) { name##_part(p); }                               \
    GRID_STATE grid::Register name##_merging(#name "_merged", threads, [](const void *p) { \
        const Params &part = static_cast<const Merged *>(p)->parts[blockIdx.z];            \
        if (blockIdx.x < part.n_blocks) name##_part(part);                                 \
    });                                                                                    \
    static void name##_part(const Params &p)

#define DYNAMIC_SHARED(type, name) \
    type *const name = reinterpret_cast<type *>(grid::shared_memory)

GRID_INLINE void sync_block() { grid::sync_block(); }
GRID_INLINE void sync_warp(GRID_LINE) {
    grid::together(grid::this_warp(), grid::SYNC_WARP, line, grid::no_finish);
}
GRID_INLINE int lane_id() { return threadIdx.x % grid::N_LANES; }
GRID_INLINE int warp_id() { return threadIdx.x / grid::N_LANES; }

template <typename T> GRID_INLINE T shfl(T v, int lane, GRID_LINE) {
    return grid::exchange(v, lane, grid::SHFL, line);
}
template <typename T> GRID_INLINE T shfl_xor(T v, int mask, GRID_LINE) {
    return grid::exchange(v, lane_id() ^ mask, grid::SHFL_XOR, line);
}
GRID_INLINE unsigned ballot(bool v, GRID_LINE) {
    grid::Warp &w = grid::this_warp();
    grid::slot_of(w, lane_id()).in[0] = v;
    return grid::together(w, grid::BALLOT, line, [](grid::Slot *slots) {
        unsigned set = 0;
        for (int i = 0; i < grid::N_LANES; i++) set |= slots[i].in[0] << i;
        for (int i = 0; i < grid::N_LANES; i++) slots[i].out[0] = set;
    }).out[0];
}
GRID_INLINE int popcount(unsigned v) { return __builtin_popcount(v); }
GRID_INLINE unsigned byte_perm(unsigned low, unsigned high, unsigned at) {
    if (at & 0x8888) grid::error("byte_perm: a nibble of 0x%x is above 7", at & 0xffff);
    const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        result |= static_cast<unsigned>(both >> (8 * (at >> (4 * i) & 7)) & 255) << (8 * i);
    }
    return result;
}

GRID_INLINE int dot_s8(unsigned a, unsigned b, int sum) {
    for (int i = 0; i < 32; i += 8)
        sum += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
    return sum;
}

GRID_ATOMIC int atomic_add(int *at, int v) {
    int before = *at;
    *at = static_cast<int>(static_cast<unsigned>(before) + static_cast<unsigned>(v));
    return before;
}
GRID_ATOMIC bool atomic_claim(unsigned long long *at, unsigned long long v) {
    if (*at != 0) return false;
    *at = v;
    return true;
}
GRID_INLINE void tell_host(long long *at, long long v) { *at = v; }

// C's functions, without the calls: the compiler inlines none that heeds NaN
GRID_INLINE float grid_fmaxf(float a, float b) { return a > b || b != b ? a : b; }
GRID_INLINE float grid_fminf(float a, float b) { return a < b || b != b ? a : b; }
#define fmaxf grid_fmaxf
#define fminf grid_fminf

GRID_INLINE float as_float(unsigned bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}
GRID_INLINE unsigned as_bits(float v) {
    unsigned bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

// A float of the same digits is 2^112 times too small. A product scales it, subnormal or not.
GRID_INLINE float f16_to_f32(unsigned short h) {
    const unsigned sign = (h & 0x8000u) << 16, digits = (h & 0x7fffu) << 13;
    const unsigned finite = as_bits(as_float(digits) * as_float(0x77800000u));
    return as_float(sign | (digits >= 0x0f800000u ? digits | 0x7f800000u : finite));
}

GRID_INLINE unsigned short f32_to_f16(float f) {  // to nearest even
    const unsigned bits = as_bits(f), sign = bits >> 16 & 0x8000u, abs = bits & 0x7fffffffu;
    unsigned h;
    if (abs > 0x7f800000u) return 0x7fff;  // the hardware's NaN
    if (abs >= 0x477ff000u)
        h = 0x7c00;  // 65520 and more
    else if (abs >= 0x38800000u)
        h = (abs - 0x38000000u + 0xfffu + (abs >> 13 & 1)) >> 13;
    else  // subnormal: the sum has its last digit at 2^-24, and rounds there
        h = as_bits(as_float(abs) + 0.5f) - 0x3f000000u;
    return static_cast<unsigned short>(sign | h);
}

// --- tensor cores ---
//
// Element e of register r of lane i, with `n` elements in a register (PTX ISA, mma.m16n8k16 and
// m16n8k32):
//   a: row i / 4 + 8 * (r % 2), column n * (i % 4) + e + 4 * n * (r / 2)
//   b: row n * (i % 4) + e + 4 * n * r, column i / 4
//   d: row i / 4 + 8 * (r / 2), column 2 * (i % 4) + r % 2

namespace grid {

struct Signed8 {
    typedef int number;
    static constexpr int n = 4;
    GRID_INLINE int get(uint32_t r, int e) { return static_cast<signed char>(r >> (8 * e)); }
};
struct Float16 {
    typedef float number;
    static constexpr int n = 2;
    GRID_INLINE float get(uint32_t r, int e) {
        return f16_to_f32(static_cast<unsigned short>(r >> (16 * e)));
    }
};
struct Bfloat16 {
    typedef float number;
    static constexpr int n = 2;
    GRID_INLINE float get(uint32_t r, int e) { return as_float(r >> (16 * e) << 16); }
};

template <typename T, int A, int B> GRID_FAST void multiply(Slot *slots) {
    typedef typename T::number Number;
    constexpr int K = 4 * T::n * B;
    Number a[16][K], b[K][8], d[16][8];
    for (int i = 0; i < N_LANES; i++) {
        const uint32_t *in = slots[i].in;
        for (int r = 0; r < A; r++)
            for (int e = 0; e < T::n; e++)
                a[i / 4 + 8 * (r % 2)][T::n * (i % 4) + e + 4 * T::n * (r / 2)] = T::get(in[r], e);
        for (int r = 0; r < B; r++)
            for (int e = 0; e < T::n; e++)
                b[T::n * (i % 4) + e + 4 * T::n * r][i / 4] = T::get(in[4 + r], e);
        for (int r = 0; r < 4; r++)
            memcpy(&d[i / 4 + 8 * (r / 2)][2 * (i % 4) + r % 2], &in[6 + r], sizeof(Number));
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < K; k++)
            for (int column = 0; column < 8; column++)
                d[row][column] += a[row][k] * b[k][column];
    for (int i = 0; i < N_LANES; i++)
        for (int r = 0; r < 4; r++)
            memcpy(&slots[i].out[r], &d[i / 4 + 8 * (r / 2)][2 * (i % 4) + r % 2], sizeof(Number));
}

template <typename T, int A, int B>
GRID_INLINE void mma(typename T::number (&d)[4], const unsigned *a, const unsigned *b, int line) {
    Warp &w = this_warp();
    uint32_t *in = slot_of(w, now % N_LANES).in;
    memcpy(in, a, A * sizeof *a);
    memcpy(in + 4, b, B * sizeof *b);
    memcpy(in + 6, d, sizeof d);
    memcpy(d, together(w, MMA, line, multiply<T, A, B>).out, sizeof d);
}

GRID_INLINE bool in_shared(const void *at, size_t size) {
    const char *p = static_cast<const char *>(at);
    return (p >= shared_memory && p + size <= shared_memory + shared_size) ||
           (p >= __bss_start && p + size <= _end);
}

GRID_INLINE void check_shared(const void *at, const char *what) {
    if (!in_shared(at, 16)) error("%s: %p is not in shared memory", what, at);
    if (reinterpret_cast<uintptr_t>(at) % 16) error("%s: %p is not aligned to 16", what, at);
}

template <bool TRANSPOSED>
GRID_INLINE void load_matrix(unsigned (&r)[4], const void *row, int line) {
    check_shared(row, "load_matrix");
    GRID_RACE(saw_read(row, 16, __builtin_return_address(0)));
    Warp &w = this_warp();
    memcpy(slot_of(w, now % N_LANES).in, &row, sizeof row);
    const Slot &own = together(w, LOAD_MATRIX, line, [](Slot *slots) {
        for (int i = 0; i < N_LANES; i++)
            for (int e = 0; e < 8; e++) {
                const int row = TRANSPOSED ? 2 * (i % 4) + e % 2 : i / 4;
                const int column = TRANSPOSED ? i / 4 : 2 * (i % 4) + e % 2;
                const char *at;
                memcpy(&at, slots[8 * (e / 2) + row].in, sizeof at);
                memcpy(reinterpret_cast<char *>(slots[i].out) + 2 * e, at + 2 * column, 2);
            }
    });
    memcpy(r, own.out, sizeof r);
}

// --- copies: the destination is poisoned at once, and written by the wait ---

GRID_COLD GRID_UNSEEN void begin_copy(void *to, const void *from) {
    check_shared(to, "copy_async");
    if (reinterpret_cast<uintptr_t>(from) % 16) error("copy_async: %p is not aligned to 16", from);
    Thread &t = threads[now];
    if (t.n_copies == MAX_COPIES) error("copy_async: more than %d are in flight", MAX_COPIES);
    large->copies[now][t.n_copies++] = {to, from, t.n_groups};
    GRID_RACE(saw_copy(to, from, true));
    memset(to, POISON, 16);
}

GRID_COLD GRID_UNSEEN void finish_copies(int n_left) {
    Thread &t = threads[now];
    Copy *own = large->copies[now];
    int i = 0;
    for (; i < t.n_copies && own[i].group < t.n_groups - n_left; i++) {
        GRID_RACE(saw_copy(own[i].to, own[i].from, false));
        memcpy(own[i].to, own[i].from, 16);
    }
    t.n_copies -= i;
    memmove(own, own + i, t.n_copies * sizeof *own);
}

}  // namespace grid

GRID_INLINE void mma_s8_k32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                            GRID_LINE) {
    grid::mma<grid::Signed8, 4, 2>(d, a, b, line);
}
GRID_INLINE void mma_s8_k16(int (&d)[4], const unsigned (&a)[2], unsigned b, GRID_LINE) {
    grid::mma<grid::Signed8, 2, 1>(d, a, &b, line);
}
GRID_INLINE void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                         GRID_LINE) {
    grid::mma<grid::Float16, 4, 2>(d, a, b, line);
}
#define HAS_BF16_MMA 1
GRID_INLINE void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                          GRID_LINE) {
    grid::mma<grid::Bfloat16, 4, 2>(d, a, b, line);
}
GRID_INLINE void load_matrix_x4(unsigned (&r)[4], const void *row, GRID_LINE) {
    grid::load_matrix<false>(r, row, line);
}
GRID_INLINE void load_matrix_x4_trans(unsigned (&r)[4], const void *row, GRID_LINE) {
    grid::load_matrix<true>(r, row, line);
}

GRID_INLINE void copy_async(void *to, const void *from) { grid::begin_copy(to, from); }
GRID_INLINE void copy_async_commit() { grid::threads[grid::now].n_groups++; }
template <int n> GRID_INLINE void copy_async_wait() { grid::finish_copies(n); }

// --- running a grid ---

namespace grid {

GRID_COLD void on_signal(int number, siginfo_t *info, void *context) {
    const ucontext_t *u = static_cast<const ucontext_t *>(context);
#if defined(__x86_64__)
    const char *pc = reinterpret_cast<const char *>(u->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    const char *pc = reinterpret_cast<const char *>(u->uc_mcontext.pc);
#else
    const char *pc = (void(u), nullptr);
#endif
    Dl_info library = {};
    dladdr(reinterpret_cast<const void *>(&on_signal), &library);
    const char *begin = static_cast<const char *>(library.dli_fbase);
    const long at = static_cast<long>(pc - begin);  // cuda_grid_compiler.py finds its line
    if (number == SIGSEGV || number == SIGBUS)
        error("address %p cannot be read or written [pc 0x%lx]", info->si_addr, at);
    if (number == SIGFPE) error("division by 0 [pc 0x%lx]", at);
    error("a misaligned address, an index outside its array, a shift by too much, "
          "or a division by 0 [pc 0x%lx]", at);
}

constexpr int N_SIGNALS = 5;  // the last two are raised by compilers' traps
static const int SIGNALS[N_SIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};

struct Signals {  // handles signals during its lifetime
    struct sigaction before[N_SIGNALS];
    stack_t stack_before;
    Signals() {
        stack_t own = {};
        own.ss_sp = large->signal_stack;
        own.ss_size = sizeof large->signal_stack;
        sigaltstack(&own, &stack_before);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        for (int i = 0; i < N_SIGNALS; i++) sigaction(SIGNALS[i], &action, &before[i]);
    }
    ~Signals() {
        for (int i = 0; i < N_SIGNALS; i++) sigaction(SIGNALS[i], &before[i], nullptr);
        sigaltstack(&stack_before, nullptr);
    }
};

static bool begin(void **rooms) {
    void *&room = rooms[ROOM];
    if (!room) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *at = mmap(nullptr, sizeof(Large), PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at == MAP_FAILED) return false;
        room = at;
    }
    large = static_cast<Large *>(room);
    n_idle = n_fibers = 0;  // another library may have used their stacks
    shared_memory = large->shared_memory;
    threads = large->threads;
    warps = large->warps;
    return true;
}

static void run_block() {
    block_number++;
    block_epoch = 0;
    memset(shared_memory, POISON, shared_size);
    memset(shared_memory + shared_size, GUARD, N_GUARD);
    char *fixed = __bss_start;
    asm volatile("" : "+r"(fixed) : : "memory");  // may alias any variable
    memset(fixed, POISON, _end - __bss_start);
    memset(threads, 0, n_threads * sizeof *threads);
    for (int i = 0; i < n_warps; i++) {
        Warp &w = warps[i];
        const int n_lanes = n_threads - i * N_LANES;
        w.lanes = n_lanes < N_LANES ? (1u << n_lanes) - 1 : ALL;
        w.ready = w.alive = w.lanes;
        w.at_block = w.arrived = 0;
    }
    n_alive = n_threads;
    n_at_block = 0;
    running = &host;
    now = reverse ? n_threads - 1 : 0;
    is_quiet = false;
    go_to(take_ready());
    is_quiet = true;
    if (message[0]) return;
    GRID_RACE(check_pending());
    for (size_t i = 0; i < N_GUARD; i++)
        if (shared_memory[shared_size + i] != static_cast<char>(GUARD))
            return (void)snprintf(message, sizeof message,
                                  "%s: block (%u, %u, %u): byte %zu of its dynamic shared memory "
                                  "was written, but it has %zu bytes",
                                  kernel->name, blockIdx.x, blockIdx.y, blockIdx.z,
                                  shared_size + i, shared_size);
}

static void run_blocks() {
    first_block = block_number + 1;
    GRID_RACE(forget_accesses());
    const dim3 &n = gridDim;
    for (unsigned z = 0; z < n.z; z++)
        for (unsigned y = 0; y < n.y; y++)
            for (unsigned x = 0; x < n.x; x++) {
                blockIdx = {x, y, z};
                if (reverse) blockIdx = {n.x - 1 - x, n.y - 1 - y, n.z - 1 - z};
                run_block();
                if (!message[0]) continue;
                n_idle = n_fibers = 0;  // drop them, wherever they are
                return;
            }
}

}  // namespace grid

// Whether there is a kernel of this name.
GRID_EXPORT int grid_has(const char *name) {
    for (const grid::Kernel *k = grid::kernels; k; k = k->next)
        if (strcmp(k->name, name) == 0) return 1;
    return 0;
}

// Run a kernel. Return 0, or 1 with the error in `message`. Only one thread may call at a time, of
// all libraries that share `rooms`: pointers to their memory, null before the first call.
GRID_EXPORT int grid_run(const char *name, const unsigned *size, int block, size_t shared,
                         const void *params, int reverse, char *message, size_t message_size,
                         void **rooms) {
    grid::message[0] = 0;
    for (grid::kernel = grid::kernels; grid::kernel; grid::kernel = grid::kernel->next)
        if (strcmp(grid::kernel->name, name) == 0) break;
    if (!grid::kernel)
        snprintf(grid::message, sizeof grid::message, "no kernel is named %s", name);
    else if (block < 1 || block > grid::kernel->max_threads || block > grid::MAX_THREADS)
        snprintf(grid::message, sizeof grid::message, "%s: blocks of %d threads, not at most %d",
                 name, block, grid::kernel->max_threads);
    else if (shared > grid::MAX_SHARED)
        snprintf(grid::message, sizeof grid::message, "%s: %zu bytes of dynamic shared memory", name,
                 shared);
    else if (!grid::begin(rooms))
        snprintf(grid::message, sizeof grid::message, "no memory for emulated grids");
    else {
        gridDim = {size[0], size[1], size[2]};
        blockDim = {static_cast<unsigned>(block), 1, 1};
        grid::n_threads = block;
        grid::n_warps = (block + grid::N_LANES - 1) / grid::N_LANES;
        grid::shared_size = shared;
        grid::params = params;
        grid::reverse = reverse != 0;
        grid::Signals caught;
        grid::run_blocks();
    }
    if (!grid::message[0]) return 0;
    snprintf(message, message_size, "%s", grid::message);
    return 1;
}
