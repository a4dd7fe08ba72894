// Plays a CUDA grid on the host: what kernels/cuda/src/device.cuh gets from a GPU, in plain C++.
//
// Blocks run in turn. The threads of a block are fibers: one runs until it waits for its warp or
// its block, then another does. So a missing barrier shows as memory that nobody has written yet,
// which is full of 0xFF (NaN); copies are made as late as they may be; and misuse (a warp operation
// without all lanes, barriers that never end, addresses that are not there or not aligned) is
// reported with the kernel, the block and the thread. Linux, g++ or clang++.
//
// cuda_grid.py compiles this file with a kernel file in an unnamed namespace behind it, so that all
// of a library is its own. Knows no driver. Tested by tests/kernels/test_cuda_grid.py.
#pragma once

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define GRID_EXPORT extern "C" __attribute__((visibility("default")))
#define GRID_COLD static __attribute__((noinline, cold, unused))
#if defined(__clang__)
#define GRID_FAST static __attribute__((noinline, no_sanitize("undefined")))
#else
#define GRID_FAST static __attribute__((noinline, no_sanitize("undefined"), optimize("O3")))
#endif
#define GRID_INLINE static inline __attribute__((always_inline, unused))

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

struct uint3 {
    unsigned int x, y, z;
};
struct dim3 {
    unsigned int x, y, z;
};

// Variables of this file. All others that the library has, which the linker puts into .bss, are a
// block's memory of fixed size: each block finds them poisoned.
#define GRID_STATE static __attribute__((section("grid_state")))
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
extern "C" __attribute__((visibility("hidden"))) char __bss_start[], _end[];

GRID_STATE uint3 threadIdx, blockIdx;
GRID_STATE dim3 blockDim, gridDim;

namespace grid {

constexpr int N_LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / N_LANES;
constexpr uint32_t ALL = ~0u;
constexpr int POISON = 0xFF, GUARD = 0xA5;
constexpr size_t MAX_SHARED = 256 * 1024, N_GUARD = 1024, STACK = 128 * 1024, PAGE = 4096;

// --- fibers ---

typedef void (*Entry)();

#if defined(__x86_64__) && !defined(GRID_PORTABLE)

struct Context {
    void *sp;
};

// What a call must keep is pushed, the stacks are exchanged. An indirect jump is foreseen better
// than a return from elsewhere.
asm(R"(
    .text
    .type grid_switch, @function
grid_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
    .size grid_switch, .-grid_switch
)");
extern "C" __attribute__((visibility("hidden"))) void grid_switch(Context *from, Context *to);

GRID_COLD void prepare(Context &c, char *stack, Entry entry) {
    void **top = reinterpret_cast<void **>(stack + STACK);
    *--top = nullptr;  // where a call would have left its return address
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    c.sp = top;
}

GRID_INLINE void change(Context &from, Context &to) { grid_switch(&from, &to); }

#else

struct Context {
    ucontext_t start;
    jmp_buf place;
    bool started;
};

GRID_COLD void prepare(Context &c, char *stack, Entry entry) {
    getcontext(&c.start);
    c.start.uc_stack.ss_sp = stack;
    c.start.uc_stack.ss_size = STACK;
    c.start.uc_link = nullptr;
    makecontext(&c.start, entry, 0);
    c.started = false;
}

static __attribute__((noinline)) void change(Context &from, Context &to) {
    from.started = true;
    if (_setjmp(from.place) != 0) return;
    if (to.started) _longjmp(to.place, 1);
    to.started = true;
    setcontext(&to.start);
}

#endif

struct Fiber {
    Context context;
    char *stack;
};

// --- what runs ---

enum Kind { NONE, SYNC_WARP, SHFL, SHFL_XOR, BALLOT, MMA, LOAD_MATRIX };
static const char *const KINDS[] = {"nothing", "sync_warp", "shfl", "shfl_xor",
                                    "ballot",  "mma",       "load_matrix"};

struct Copy {
    void *to;
    const void *from;
    int group;
};
constexpr int MAX_COPIES = 256;  // of a thread, under way

struct Thread {
    Fiber *fiber;  // null before it has begun
    int n_copies, n_groups;  // under way, begun
};

struct Slot {  // what a lane gives to an operation of its warp, and gets
    uint32_t in[10];
    uint32_t out[4];
};

struct Warp {
    uint32_t lanes, ready, alive, at_block;  // sets of lanes; the running one is not ready
    uint32_t arrived;                        // at an operation of this kind
    Kind kind;
    uint32_t n_done;  // operations; those of even and odd number have slots of their own
    Slot slots[2][N_LANES];
};

struct Kernel {
    const char *name;
    int max_threads;
    void (*run)(const void *params);
    const Kernel *next;
};

struct Large {  // what is large; the system has zeroed it
    alignas(16) char shared_memory[MAX_SHARED + N_GUARD];
    Thread threads[MAX_THREADS];
    Warp warps[MAX_WARPS];
    Fiber fibers[MAX_THREADS + 1];
    Fiber *idle[MAX_THREADS + 1];
    Copy copies[MAX_THREADS][MAX_COPIES];
    char signal_stack[64 * 1024];
};

GRID_STATE Large *large;
GRID_STATE const Kernel *kernels;
GRID_STATE const Kernel *kernel;  // the one that runs
GRID_STATE const void *params;
GRID_STATE bool reverse;  // later blocks, warps and lanes first
GRID_STATE Thread *threads;
GRID_STATE Warp *warps;
GRID_STATE int n_threads, n_warps, n_alive, n_at_block;
GRID_STATE int now;  // number of the running thread
GRID_STATE Fiber host, *running;
GRID_STATE int n_fibers, n_idle;
GRID_STATE char *shared_memory;  // the block's dynamic memory
GRID_STATE size_t shared_size;
GRID_STATE char message[1024];

struct Register {
    Kernel own;
    Register(const char *name, int max_threads, void (*run)(const void *))
        : own{name, max_threads, run, kernels} {
        kernels = &own;
    }
};

// --- errors: the grid ends where it is ---

GRID_COLD __attribute__((noreturn)) void stop() {
    Context dead;
    change(dead, host.context);
    __builtin_unreachable();
}

GRID_COLD __attribute__((noreturn, format(printf, 1, 2))) void error(const char *format, ...) {
    int n = snprintf(message, sizeof message, "%s: block (%u, %u, %u), thread %d: ", kernel->name,
                     blockIdx.x, blockIdx.y, blockIdx.z, now);
    va_list args;
    va_start(args, format);
    vsnprintf(message + n, sizeof message - n, format, args);
    va_end(args);
    stop();
}

GRID_COLD __attribute__((noreturn)) void deadlock() {
    int at_block = 0, at_warp = 0, block_first = 0, warp_first = 0;
    for (int i = n_threads; i-- > 0;) {
        const Warp &w = warps[i / N_LANES];
        if (w.at_block >> (i % N_LANES) & 1) at_block++, block_first = i;
        if (w.arrived >> (i % N_LANES) & 1) at_warp++, warp_first = i;
    }
    error("nobody can go on: %d threads wait at sync_block (the first is %d), "
          "%d at warp operations (the first is %d, at %s), %d have returned",
          at_block, block_first, at_warp, warp_first, KINDS[warps[warp_first / N_LANES].kind],
          n_threads - n_alive);
}

// --- the scheduler ---

static void fiber_main();

GRID_COLD Fiber *new_fiber() {
    Fiber &f = large->fibers[n_fibers++];
    if (!f.stack) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *at = mmap(nullptr, PAGE + STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at == MAP_FAILED) error("no memory for the thread's stack");
        mprotect(at, PAGE, PROT_NONE);
        f.stack = static_cast<char *>(at) + PAGE;
    }
    prepare(f.context, f.stack, fiber_main);
    return &f;
}

GRID_INLINE int pick_lane(uint32_t set) {
    return reverse ? 31 - __builtin_clz(set) : __builtin_ctz(set);
}

// The thread to run next, of the running warp if there is one; -1: none can. It is ready no more.
GRID_INLINE int take_ready() {
    int w = now / N_LANES;
    if (!warps[w].ready) {
        int left = n_warps;
        while (left && !warps[w].ready) {
            w = reverse ? (w ? w - 1 : n_warps - 1) : (w + 1 < n_warps ? w + 1 : 0);
            left--;
        }
        if (!left) return -1;
    }
    int lane = pick_lane(warps[w].ready);
    warps[w].ready &= ~(1u << lane);
    return w * N_LANES + lane;
}

GRID_INLINE void become(int thread) {
    now = thread;
    threadIdx.x = static_cast<unsigned>(thread);
}

// Leave the running fiber for the one of a thread, which may have to begin.
GRID_INLINE void go_to(int thread) {
    Fiber *from = running, *&to = threads[thread].fiber;
    if (!to) to = n_idle ? large->idle[--n_idle] : new_fiber();
    become(thread);
    running = to;
    change(from->context, to->context);
}

static __attribute__((noinline)) void wait() {
    int next = take_ready();
    if (next < 0) deadlock();
    go_to(next);
}

static void release_block() {
    for (int i = 0; i < n_warps; i++) {
        warps[i].ready |= warps[i].at_block;
        warps[i].at_block = 0;
    }
    n_at_block = 0;
}

static void leave() {
    Warp &w = warps[now / N_LANES];
    if (w.arrived)
        error("it returns while lane %d waits at %s", __builtin_ctz(w.arrived), KINDS[w.kind]);
    w.alive &= ~(1u << now % N_LANES);
    n_alive--;
    if (n_at_block && n_at_block == n_alive) release_block();
}

// Runs threads to their ends, one after the other while they need not wait.
static void fiber_main() {
    Fiber *const me = running;
    for (;;) {
        kernel->run(params);
        leave();
        int next = take_ready();
        if (next >= 0 && !threads[next].fiber) {
            threads[next].fiber = me;
            become(next);
            continue;
        }
        if (next < 0 && n_alive) deadlock();
        large->idle[n_idle++] = me;
        if (next >= 0) {
            go_to(next);
        } else {
            running = &host;
            change(me->context, host.context);
        }
    }
}

GRID_COLD void sync_block() {
    Warp &w = warps[now / N_LANES];
    if (++n_at_block == n_alive) {
        release_block();
    } else {
        w.at_block |= 1u << now % N_LANES;
        wait();
    }
}

// --- operations of a warp ---

GRID_COLD __attribute__((noreturn)) void misused(const Warp &w, Kind kind) {
    if (w.lanes != ALL) error("%s in a warp of %d lanes", KINDS[kind], __builtin_popcount(w.lanes));
    if (w.alive != ALL) error("%s, but lane %d has returned", KINDS[kind], __builtin_ctz(~w.alive));
    error("%s, but lane %d is at %s", KINDS[kind], __builtin_ctz(w.arrived), KINDS[w.kind]);
}

GRID_INLINE Warp &this_warp() { return warps[now / N_LANES]; }
GRID_INLINE Slot &slot_of(Warp &w, int lane) { return w.slots[w.n_done & 1][lane]; }

// Wait for all lanes; the last one does `finish` for all, on their slots. Gives this lane's.
template <typename Finish> GRID_INLINE Slot &together(Warp &w, Kind kind, Finish finish) {
    if (w.alive != ALL || (w.arrived && w.kind != kind)) misused(w, kind);
    const uint32_t own = 1u << now % N_LANES;
    Slot *slots = w.slots[w.n_done & 1];
    w.kind = kind;
    w.arrived |= own;
    if (w.arrived != ALL) {
        wait();
    } else {
        finish(slots);
        w.arrived = 0;
        w.n_done++;
        w.ready = ~own;
    }
    return slots[now % N_LANES];
}

GRID_INLINE void no_finish(Slot *) {}

template <typename T> GRID_INLINE T exchange(T v, int from, Kind kind) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a number");
    Warp &w = this_warp();
    memcpy(slot_of(w, now % N_LANES).in, &v, sizeof v);
    const Slot *own = &together(w, kind, no_finish);
    memcpy(&v, (own - now % N_LANES + from % N_LANES)->in, sizeof v);
    return v;
}

}  // namespace grid

// --- what device.cuh's other branch defines ---

#define DEVICE inline __attribute__((unused))

#define KERNEL(name, threads, blocks_per_sm)                                    \
    static void name(const Params &p);                                          \
    GRID_STATE grid::Register name##_registered(#name, threads, [](const void *p) { \
        name(*static_cast<const Params *>(p));                                  \
    });                                                                         \
    static void name(const Params &p)

#define DYNAMIC_SHARED(type, name) \
    type *const name = reinterpret_cast<type *>(grid::shared_memory)

GRID_INLINE void sync_block() { grid::sync_block(); }
GRID_INLINE void sync_warp() { grid::together(grid::this_warp(), grid::SYNC_WARP, grid::no_finish); }
GRID_INLINE int lane_id() { return threadIdx.x % grid::N_LANES; }
GRID_INLINE int warp_id() { return threadIdx.x / grid::N_LANES; }

template <typename T> GRID_INLINE T shfl(T v, int lane) {
    return grid::exchange(v, lane, grid::SHFL);
}
template <typename T> GRID_INLINE T shfl_xor(T v, int mask) {
    return grid::exchange(v, lane_id() ^ mask, grid::SHFL_XOR);
}
GRID_INLINE unsigned ballot(bool v) {
    grid::Warp &w = grid::this_warp();
    grid::slot_of(w, lane_id()).in[0] = v;
    return grid::together(w, grid::BALLOT, [](grid::Slot *slots) {
        unsigned set = 0;
        for (int i = 0; i < grid::N_LANES; i++) set |= slots[i].in[0] << i;
        for (int i = 0; i < grid::N_LANES; i++) slots[i].out[0] = set;
    }).out[0];
}
GRID_INLINE int popcount(unsigned v) { return __builtin_popcount(v); }

GRID_INLINE int atomic_add(int *at, int v) {
    int before = *at;
    *at = static_cast<int>(static_cast<unsigned>(before) + static_cast<unsigned>(v));
    return before;
}
GRID_INLINE bool atomic_claim(unsigned long long *at, unsigned long long v) {
    if (*at != 0) return false;
    *at = v;
    return true;
}
GRID_INLINE void fence() {}
GRID_INLINE void fence_system() {}

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

// A float of the same digits is 2^112 times too small, which a product mends, subnormal or not.
GRID_INLINE float f16_to_f32(unsigned short h) {
    const unsigned sign = (h & 0x8000u) << 16, digits = (h & 0x7fffu) << 13;
    const unsigned finite = as_bits(as_float(digits) * as_float(0x77800000u));
    return as_float(sign | (digits >= 0x0f800000u ? digits | 0x7f800000u : finite));
}

GRID_INLINE unsigned short f32_to_f16(float f) {  // to nearest even
    const unsigned bits = as_bits(f), sign = bits >> 16 & 0x8000u, abs = bits & 0x7fffffffu;
    unsigned h;
    if (abs > 0x7f800000u) return 0x7fff;  // NaN, as the hardware gives it
    if (abs >= 0x477ff000u)
        h = 0x7c00;  // 65520 and more
    else if (abs >= 0x38800000u)
        h = (abs - 0x38000000u + 0xfffu + (abs >> 13 & 1)) >> 13;
    else  // subnormal: the sum has its last digit at 2^-24, and rounds there
        h = as_bits(as_float(abs) + 0.5f) - 0x3f000000u;
    return static_cast<unsigned short>(sign | h);
}

GRID_INLINE int dp4a(int a, int b, int c) {
    unsigned sum = static_cast<unsigned>(c);
    for (int i = 0; i < 32; i += 8)
        sum += static_cast<unsigned>(static_cast<signed char>(a >> i) *
                                     static_cast<signed char>(b >> i));
    return static_cast<int>(sum);
}

GRID_INLINE unsigned funnel(unsigned low, unsigned high, int shift) {
    const unsigned n = static_cast<unsigned>(shift) & 31u;
    return n ? low >> n | high << (32 - n) : low;
}

// --- tensor cores ---
//
// A fragment's registers hold (PTX ISA, mma.m16n8k16 and m16n8k32), of lane i, with `n` elements in
// a register, at element e of register r:
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
GRID_INLINE void mma(typename T::number (&d)[4], const unsigned *a, const unsigned *b) {
    Warp &w = this_warp();
    uint32_t *in = slot_of(w, now % N_LANES).in;
    memcpy(in, a, A * sizeof *a);
    memcpy(in + 4, b, B * sizeof *b);
    memcpy(in + 6, d, sizeof d);
    memcpy(d, together(w, MMA, multiply<T, A, B>).out, sizeof d);
}

GRID_INLINE bool in_shared(const void *at, size_t size) {
    const char *p = static_cast<const char *>(at);
    return (p >= shared_memory && p + size <= shared_memory + shared_size) ||
           (p >= __bss_start && p + size <= _end);
}

GRID_INLINE void check_shared(const void *at, const char *what) {
    if (!in_shared(at, 16)) error("%s: %p is not in the block's memory", what, at);
    if (reinterpret_cast<uintptr_t>(at) % 16) error("%s: %p is not aligned to 16", what, at);
}

template <bool TRANSPOSED> GRID_INLINE void load_matrix(unsigned (&r)[4], const void *row) {
    check_shared(row, "load_matrix");
    Warp &w = this_warp();
    memcpy(slot_of(w, now % N_LANES).in, &row, sizeof row);
    const Slot &own = together(w, LOAD_MATRIX, [](Slot *slots) {
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

// --- copies: the place is poisoned at once, and written when they are waited for ---

GRID_COLD void begin_copy(void *to, const void *from) {
    check_shared(to, "copy_async");
    if (reinterpret_cast<uintptr_t>(from) % 16) error("copy_async: %p is not aligned to 16", from);
    Thread &t = threads[now];
    if (t.n_copies == MAX_COPIES) error("copy_async: more than %d are under way", MAX_COPIES);
    large->copies[now][t.n_copies++] = {to, from, t.n_groups};
    memset(to, POISON, 16);
}

GRID_COLD void finish_copies(int n_left) {
    Thread &t = threads[now];
    Copy *own = large->copies[now];
    int i = 0;
    for (; i < t.n_copies && own[i].group < t.n_groups - n_left; i++)
        memcpy(own[i].to, own[i].from, 16);
    t.n_copies -= i;
    memmove(own, own + i, t.n_copies * sizeof *own);
}

}  // namespace grid

GRID_INLINE void mma_s8_k32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    grid::mma<grid::Signed8, 4, 2>(d, a, b);
}
GRID_INLINE void mma_s8_k16(int (&d)[4], const unsigned (&a)[2], unsigned b) {
    grid::mma<grid::Signed8, 2, 1>(d, a, &b);
}
GRID_INLINE void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    grid::mma<grid::Float16, 4, 2>(d, a, b);
}
#define HAS_BF16_MMA 1
GRID_INLINE void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    grid::mma<grid::Bfloat16, 4, 2>(d, a, b);
}
GRID_INLINE void load_matrix_x4(unsigned (&r)[4], const void *row) {
    grid::load_matrix<false>(r, row);
}
GRID_INLINE void load_matrix_x4_trans(unsigned (&r)[4], const void *row) {
    grid::load_matrix<true>(r, row);
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
    const long at = static_cast<long>(pc - begin);  // whose line can be looked up
    if (number == SIGSEGV || number == SIGBUS)
        error("address %p cannot be read or written [pc 0x%lx]", info->si_addr, at);
    if (number == SIGFPE) error("division by 0 [pc 0x%lx]", at);
    error("an address that is not aligned to its type, an index outside its array, "
          "a shift by too much, or a division by 0 [pc 0x%lx]", at);
}

constexpr int N_SIGNALS = 5;  // the last two are how compilers trap
static const int SIGNALS[N_SIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};

struct Signals {  // caught while it lives
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

static bool begin() {
    if (large) return true;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = mmap(nullptr, sizeof(Large), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) return false;
    large = static_cast<Large *>(at);
    shared_memory = large->shared_memory;
    threads = large->threads;
    warps = large->warps;
    return true;
}

static void run_block() {
    memset(shared_memory, POISON, shared_size);
    memset(shared_memory + shared_size, GUARD, N_GUARD);
    char *fixed = __bss_start;
    asm volatile("" : "+r"(fixed) : : "memory");  // it may be any variable's
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
    go_to(take_ready());
    if (message[0]) return;
    for (size_t i = 0; i < N_GUARD; i++)
        if (shared_memory[shared_size + i] != static_cast<char>(GUARD))
            return (void)snprintf(message, sizeof message,
                                  "%s: block (%u, %u, %u): byte %zu of its dynamic memory was "
                                  "written, which has %zu",
                                  kernel->name, blockIdx.x, blockIdx.y, blockIdx.z,
                                  shared_size + i, shared_size);
}

static void run_blocks() {
    const dim3 &n = gridDim;
    for (unsigned z = 0; z < n.z; z++)
        for (unsigned y = 0; y < n.y; y++)
            for (unsigned x = 0; x < n.x; x++) {
                blockIdx = {x, y, z};
                if (reverse) blockIdx = {n.x - 1 - x, n.y - 1 - y, n.z - 1 - z};
                run_block();
                if (!message[0]) continue;
                n_idle = n_fibers = 0;  // whatever they were at
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

// Run a kernel; 0, or 1 with what went wrong in `message`. One thread at a time.
GRID_EXPORT int grid_run(const char *name, const unsigned *size, int block, size_t shared,
                         const void *params, int reverse, char *message, size_t message_size) {
    grid::message[0] = 0;
    for (grid::kernel = grid::kernels; grid::kernel; grid::kernel = grid::kernel->next)
        if (strcmp(grid::kernel->name, name) == 0) break;
    if (!grid::kernel)
        snprintf(grid::message, sizeof grid::message, "no kernel is named %s", name);
    else if (block < 1 || block > grid::kernel->max_threads || block > grid::MAX_THREADS)
        snprintf(grid::message, sizeof grid::message, "%s: blocks of %d threads, it is made for %d",
                 name, block, grid::kernel->max_threads);
    else if (shared > grid::MAX_SHARED)
        snprintf(grid::message, sizeof grid::message, "%s: %zu bytes of dynamic memory", name,
                 shared);
    else if (!grid::begin())
        snprintf(grid::message, sizeof grid::message, "no memory to play grids in");
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
