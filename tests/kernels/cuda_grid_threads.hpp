// The threads of an emulated CUDA grid: fibers, their scheduler, waits for a warp or a block, and
// the exchange of values between lanes. See cuda_grid.hpp.
//
// Tested by tests/kernels/test_cuda_grid.py.
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

#define GRID_EXPORT extern "C" __attribute__((visibility("default")))
#define GRID_COLD static __attribute__((noinline, cold, unused))
#if defined(__clang__)
#define GRID_FAST static __attribute__((noinline, no_sanitize("undefined")))
#else
#define GRID_FAST static __attribute__((noinline, no_sanitize("undefined"), optimize("O3")))
#endif
#define GRID_LINE int line = __builtin_LINE()  // the last parameter: the caller's line
#define GRID_INLINE static inline __attribute__((always_inline, unused))

struct uint3 {
    unsigned int x, y, z;
};
struct dim3 {
    unsigned int x, y, z;
};

// For variables of this file. The linker puts all other variables into .bss: they are a block's
// shared memory of fixed size, and are poisoned for each block.
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
constexpr size_t MAX_SHARED = 256 * 1024, N_GUARD = 1024, STACK = 128 * 1024;

// --- fibers ---

typedef void (*Entry)();

#if defined(__x86_64__) && !defined(GRID_PORTABLE)

constexpr int ROOM = 0;  // of contexts of this kind

struct Context {
    void *sp;
};

// Push the callee-saved registers and exchange the stacks. An indirect jump is predicted better
// than a return to another place.
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
    *--top = nullptr;  // instead of a call's return address
    *--top = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    c.sp = top;
}

GRID_INLINE void change(Context &from, Context &to) { grid_switch(&from, &to); }

#else

constexpr int ROOM = 1;

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

// --- threads, warps and operations ---

enum Kind { NONE, SYNC_WARP, SHFL, SHFL_XOR, BALLOT, MMA, LOAD_MATRIX };
static const char *const KINDS[] = {"nothing", "sync_warp", "shfl", "shfl_xor",
                                    "ballot",  "mma",       "load_matrix"};

struct Copy {
    void *to;
    const void *from;
    int group;
};
constexpr int MAX_COPIES = 256;  // of a thread, in flight

struct Thread {
    Fiber *fiber;  // null before it has begun
    int n_copies, n_groups;  // copies in flight, groups begun
};

struct Slot {  // a lane's input and output of a warp operation
    uint32_t in[10];
    uint32_t out[4];
};

struct Warp {
    uint32_t lanes, ready, alive, at_block;  // sets of lanes; the running one is not ready
    uint32_t arrived;                        // lanes at an operation of this kind, in this line
    Kind kind;
    int line;
    uint32_t n_done;  // operations; even and odd ones have their own slots
    uint32_t epoch;   // calls of sync_warp
    Slot slots[2][N_LANES];
};

struct Kernel {
    const char *name;
    int max_threads;
    void (*run)(const void *params);
    const Kernel *next;
};

struct Large {  // large arrays, zeroed by the system
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
GRID_STATE const Kernel *kernel;  // the running kernel
GRID_STATE const void *params;
GRID_STATE bool reverse;  // run later blocks, warps and lanes first
GRID_STATE Thread *threads;
GRID_STATE Warp *warps;
GRID_STATE int n_threads, n_warps, n_alive, n_at_block;
GRID_STATE int now;  // index of the running thread
GRID_STATE Fiber host, *running;
GRID_STATE int n_fibers, n_idle;
GRID_STATE char *shared_memory;  // the block's dynamic shared memory
GRID_STATE size_t shared_size;
GRID_STATE char message[1024];
// to find races: the numbers of the grid's first block and of this one, barriers of the block, and
// whether accesses are the emulation's own
GRID_STATE uint32_t first_block, block_number, block_epoch;
GRID_STATE bool is_quiet = true;

struct Register {
    Kernel own;
    Register(const char *name, int max_threads, void (*run)(const void *))
        : own{name, max_threads, run, kernels} {
        kernels = &own;
    }
};

// --- errors: the grid stops at once ---

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
    error("deadlock: %d threads wait at sync_block (the first is %d), "
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
        void *at = mmap(nullptr, 2 * STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at == MAP_FAILED) error("no memory for the thread's stack");
        mprotect(at, STACK, PROT_NONE);  // a stack overflow faults, even past a large array
        f.stack = static_cast<char *>(at) + STACK;
    }
    prepare(f.context, f.stack, fiber_main);
    return &f;
}

GRID_INLINE int pick_lane(uint32_t set) {
    return reverse ? 31 - __builtin_clz(set) : __builtin_ctz(set);
}

// Take the next ready thread, of the running warp if possible; -1 if no thread is ready.
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

// Switch from the running fiber to a thread's fiber; start the thread if it has not begun.
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
    block_epoch++;
}

static void leave() {
    Warp &w = warps[now / N_LANES];
    if (w.arrived)
        error("returns while lane %d waits at %s", __builtin_ctz(w.arrived), KINDS[w.kind]);
    w.alive &= ~(1u << now % N_LANES);
    n_alive--;
    if (n_at_block && n_at_block == n_alive) release_block();
}

// Run threads one after the other, each to its end, as long as none has to wait.
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

GRID_COLD __attribute__((noreturn)) void misused(const Warp &w, Kind kind, int line) {
    if (w.lanes != ALL) error("%s in a warp of %d lanes", KINDS[kind], __builtin_popcount(w.lanes));
    if (w.alive != ALL) error("%s, but lane %d has returned", KINDS[kind], __builtin_ctz(~w.alive));
    const int other = __builtin_ctz(w.arrived);
    if (w.kind != kind) error("%s, but lane %d is at %s", KINDS[kind], other, KINDS[w.kind]);
    error("%s in line %d, but lane %d is in line %d", KINDS[kind], line, other, w.line);
}

GRID_INLINE Warp &this_warp() { return warps[now / N_LANES]; }
GRID_INLINE Slot &slot_of(Warp &w, int lane) { return w.slots[w.n_done & 1][lane]; }

// Wait for all lanes; the last one calls `finish` on all slots. Return this lane's slot. The kernel
// calls the operation in `line`, which is the same for all: each instruction needs all lanes.
template <typename Finish>
GRID_INLINE Slot &together(Warp &w, Kind kind, int line, Finish finish) {
    if (w.alive != ALL || (w.arrived && (w.kind != kind || w.line != line))) misused(w, kind, line);
    const uint32_t own = 1u << now % N_LANES;
    Slot *slots = w.slots[w.n_done & 1];
    w.kind = kind, w.line = line;
    w.arrived |= own;
    if (w.arrived != ALL) {
        wait();
    } else {
        is_quiet = true;
        finish(slots);
        is_quiet = false;
        w.arrived = 0;
        w.n_done++;
        if (kind == SYNC_WARP) w.epoch++;
        w.ready = ~own;
    }
    return slots[now % N_LANES];
}

GRID_INLINE void no_finish(Slot *) {}

template <typename T> GRID_INLINE T exchange(T v, int from, Kind kind, int line) {
    static_assert(sizeof(T) <= sizeof(uint64_t), "a number");
    Warp &w = this_warp();
    memcpy(slot_of(w, now % N_LANES).in, &v, sizeof v);
    const Slot *own = &together(w, kind, line, no_finish);
    memcpy(&v, (own - now % N_LANES + from % N_LANES)->in, sizeof v);
    return v;
}

}  // namespace grid
