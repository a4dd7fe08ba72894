// Finds races of an emulated CUDA grid: two threads use a byte, one of them writes it, and nothing
// orders them. Threads of a block are ordered by its barriers, those of a warp also by sync_warp,
// but not by an exchange between lanes. Those of two blocks are not ordered. An asynchronous copy
// writes from its begin until its thread has waited for it. To write what is there already is no
// race.
//
// With GRID_RACES, g++'s -fsanitize=thread calls the functions at the end before each access. Knows
// no atomics: cuda_grid.hpp hides theirs. Tested by tests/kernels/test_cuda_races.py.
#pragma once

#include "cuda_grid_threads.hpp"

extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[];  // where the library begins

#define GRID_OWN GRID_COLD GRID_UNSEEN

namespace grid {

constexpr uint32_t SEVERAL = ~0u;  // warps or lanes

// The last access of a kind; or the last ones, if nothing orders them.
struct Access {
    uint32_t block;              // number of the last block; 0: no access yet
    uint32_t epoch, warp_epoch;  // barriers before it
    uint32_t warp, lane, pc;
    bool of_blocks;  // of several
};

struct Cell {  // of a byte
    Access write, read;
    uint32_t copied;  // the block whose copy to it is in flight
};

constexpr size_t PAGE_BYTES = 4096, N_PAGES = 1 << 16;  // twice what a grid may use

struct Page {
    uintptr_t number;  // 0: none
    Cell *cells;
};

struct Pending {  // a write that is a race unless it leaves the bytes as they are
    const char *at;
    size_t size;  // 0: there is none
    char before[16];
    Access other, own;
};

GRID_STATE Page *pages;  // a hash table
GRID_STATE Cell *all_cells;
GRID_STATE size_t n_pages;
GRID_STATE Pending pending;

// --- the cells of memory ---

GRID_OWN void *map(size_t size) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) error("no memory to find races");
    return at;
}

// Forget all accesses: a grid begins. Cells are used again, with those of earlier blocks.
GRID_OWN void forget_accesses() {
    if (!pages) {
        pages = static_cast<Page *>(map(N_PAGES * sizeof(Page)));
        all_cells = static_cast<Cell *>(map(N_PAGES / 2 * PAGE_BYTES * sizeof(Cell)));
    }
    memset(pages, 0, N_PAGES * sizeof(Page));
    n_pages = pending.size = 0;
}

GRID_OWN Cell &cell_of(const char *at) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(at), number = address / PAGE_BYTES;
    size_t i = number % N_PAGES;
    while (pages[i].number && pages[i].number != number) i = (i + 1) % N_PAGES;
    if (!pages[i].number) {
        if (n_pages == N_PAGES / 2) error("too much memory to find races");
        pages[i] = {number, all_cells + n_pages++ * PAGE_BYTES};
    }
    return pages[i].cells[address % PAGE_BYTES];
}

GRID_OWN bool is_within(const char *at, const void *begin, const void *end) {
    return at >= begin && at < end;
}

GRID_OWN bool is_shared(const char *at) {
    return is_within(at, shared_memory, shared_memory + MAX_SHARED) ||
           is_within(at, __bss_start, _end);
}

// True for local variables, tables of constants, and what the emulation itself uses.
GRID_OWN bool is_private(const char *at) {
    return is_within(at, running->stack, running->stack + STACK) ||
           is_within(at, large, large + 1) || is_within(at, __ehdr_start, _end);
}

// --- the order of accesses ---

GRID_OWN Access access(const void *pc) {
    const uint32_t thread = static_cast<uint32_t>(now);
    const char *at = static_cast<const char *>(pc);
    return {block_number,     block_epoch,      warps[now / N_LANES].epoch,
            thread / N_LANES, thread % N_LANES, static_cast<uint32_t>(at - __ehdr_start),
            false};
}

// True if something orders an access after an earlier one. `shared`: to a block's own memory.
GRID_OWN bool is_after(const Access &own, const Access &before, bool shared) {
    if (before.block < first_block) return true;  // of an earlier grid
    if (before.of_blocks || before.block != own.block) return shared;
    if (before.epoch != own.epoch) return true;
    if (before.warp != own.warp) return false;
    return before.warp_epoch != own.warp_epoch || before.lane == own.lane;
}

GRID_OWN __attribute__((noreturn)) void report(const char *at, const char *what, const Access &own,
                                               const Access &other) {
    char who[64] = "threads of several warps";
    if (other.of_blocks) {
        snprintf(who, sizeof who, "several blocks");
    } else if (other.block != own.block) {
        snprintf(who, sizeof who, "another block");
    } else if (other.warp != SEVERAL && other.lane == SEVERAL) {
        snprintf(who, sizeof who, "several threads of warp %u", other.warp);
    } else if (other.warp != SEVERAL) {
        snprintf(who, sizeof who, "thread %u", other.warp * N_LANES + other.lane);
    }
    error("a race for byte %p: %s at [pc 0x%x], after an access of %s at [pc 0x%x]", at, what,
          own.pc, who, other.pc);
}

GRID_OWN void check_pending() {
    const size_t size = pending.size;
    pending.size = 0;
    if (size && memcmp(pending.at, pending.before, size) != 0)
        report(pending.at, "another value is written", pending.own, pending.other);
}

GRID_OWN void check_copied(const char *at, const Cell &cell, const Access &own) {
    if (cell.copied == own.block)
        error("byte %p is used while a copy to it is in flight [pc 0x%x]", at, own.pc);
}

GRID_OWN void saw_read(const void *from, size_t size, const void *pc) {
    if (is_quiet) return;
    check_pending();
    const char *at = static_cast<const char *>(from);
    const bool shared = is_shared(at);
    if (!shared && is_private(at)) return;
    const Access own = access(pc);
    for (; size > 0; size--, at++) {
        Cell &cell = cell_of(at);
        const Access before = cell.read;
        check_copied(at, cell, own);
        if (!is_after(own, cell.write, shared)) report(at, "it is read", own, cell.write);
        cell.read = own;
        if (is_after(own, before, shared)) continue;
        cell.read.of_blocks = before.of_blocks || before.block != own.block;
        if (before.warp != own.warp) cell.read.warp = SEVERAL;
        cell.read.lane = SEVERAL;
    }
}

GRID_OWN void saw_write(const void *to, size_t size, const void *pc) {
    if (is_quiet) return;
    check_pending();
    const char *at = static_cast<const char *>(to);
    const bool shared = is_shared(at);
    if (!shared && is_private(at)) return;
    const Access own = access(pc);
    const size_t known = size < sizeof pending.before ? size : sizeof pending.before;
    for (size_t i = 0; i < size; i++) {
        Cell &cell = cell_of(at + i);
        check_copied(at + i, cell, own);
        const bool after_write = is_after(own, cell.write, shared);
        if (!pending.size && !(after_write && is_after(own, cell.read, shared))) {
            pending = {at, known, {}, after_write ? cell.read : cell.write, own};
            memcpy(pending.before, at, known);
        }
        cell.write = own;
    }
}

// 16 bytes are about to be copied to shared memory, or have been.
GRID_OWN void saw_copy(const void *to, const void *from, bool begins) {
    const void *pc = __builtin_return_address(0);
    saw_read(from, 16, pc);
    const Access own = access(pc);
    const char *at = static_cast<const char *>(to);
    for (const char *end = at + 16; at < end; at++) {
        Cell &cell = cell_of(at);
        const Access &other = is_after(own, cell.write, true) ? cell.read : cell.write;
        if (!is_after(own, other, true)) report(at, "a copy begins or ends", own, other);
        cell.write = own;
        cell.copied = begins ? own.block : 0;
    }
}

}  // namespace grid

// --- calls of the compiler ---

#define GRID_CALL(name, ...) \
    extern "C" __attribute__((visibility("hidden"))) GRID_UNSEEN void __tsan_##name(__VA_ARGS__)
#define GRID_ACCESS(name, what, size) \
    GRID_CALL(name, void *at) { grid::what(at, size, __builtin_return_address(0)); }
#define GRID_ACCESSES(size)              \
    GRID_ACCESS(read##size, saw_read, size) \
    GRID_ACCESS(write##size, saw_write, size)
#define GRID_UNALIGNED(size)                       \
    GRID_ACCESS(unaligned_read##size, saw_read, size) \
    GRID_ACCESS(unaligned_write##size, saw_write, size)

GRID_ACCESSES(1)
GRID_ACCESSES(2)
GRID_ACCESSES(4)
GRID_ACCESSES(8)
GRID_ACCESSES(16)
GRID_UNALIGNED(2)
GRID_UNALIGNED(4)
GRID_UNALIGNED(8)
GRID_UNALIGNED(16)
GRID_CALL(read_range, void *at, size_t n) { grid::saw_read(at, n, __builtin_return_address(0)); }
GRID_CALL(write_range, void *at, size_t n) { grid::saw_write(at, n, __builtin_return_address(0)); }
GRID_CALL(func_entry, void *) {}
GRID_CALL(func_exit) {}
GRID_CALL(init) {}
