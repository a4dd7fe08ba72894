/* A libcuda.so.1 for tests: the driver calls of kernels/cuda/bindings.py, on host memory.

A device is a context that must be current, as in the real driver. Streams run at once, unless they
are captured. The only kernel, "add", adds words[2] to words[1] int64 values at words[0]. A module's
image must begin with "IMAGE".

fake_log() returns the calls with their arguments. The environment, read at each call, describes the
machine:

    FAKE_CUDA_FAIL=cuMemAlloc=2,cuInit=100   these calls return these errors
    FAKE_CUDA_VERSION=12080                  of the driver
    FAKE_CUDA_ARCHS=90,80                    the devices, by compute capability
    FAKE_CUDA_MEMORY=1048576                 bytes of each device, and of pinned memory
    FAKE_CUDA_PEERS=1                        devices can read each other's memory
    FAKE_CUDA_BUSY=1                         queries say that work is not done
    FAKE_CUDA_TIME=1000                      microseconds that each call takes
    FAKE_CUDA_HIDE=cuStreamQuery             the driver does not hand out this call

With -DOLD it is a driver from before CUDA 12, which lacks cuGetProcAddress_v2. With -DIDLE it does
nothing and logs nothing, for benchmarks of the host: any image and any kernel is right. With
-DCALL_NS=3000 each call takes 3 us. */

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
    PEER_ACCESS_ALREADY_ENABLED = 704, PEER_ACCESS_NOT_ENABLED = 705, CAPTURE_UNSUPPORTED = 900,
};
enum { RELAXED = 2, MAX_DEVICES = 4, MAX_NODES = 64, DEFAULT_SHARED = 48 << 10, HEADER = 64 };

#ifdef IDLE
#define MEMORY (1ll << 40)
#else
#define MEMORY (1 << 20)
#endif

typedef int Result;
typedef uint64_t Pointer;
typedef struct { int device; size_t used; int retained; int peers[MAX_DEVICES]; } Context;
typedef struct { Context *context; int what; const char *name; int shared; } Module;  /* 'm', 'f' */
typedef struct { int what; Pointer to, from; size_t size; int64_t words[3]; } Node;  /* c, s, k, e */
typedef struct { int n; Node nodes[MAX_NODES]; } Graph;
typedef struct { Context *context; Graph *captured; } Stream;
typedef struct { Context *context; int timing; double at; } Event;

static Context contexts[MAX_DEVICES];
static __thread Context *current;
static __thread int capturing; /* in a mode that forbids allocating and freeing */
static int initialized;
static size_t pinned;
static double now;
static char log_text[1 << 16];
static size_t log_size;

/* --- the tests' interface --- */

const char *fake_log(void) { return log_text; }
void fake_log_clear(void) { log_text[log_size = 0] = 0; }
int fake_refs(int device) { return contexts[device].retained; }

#ifdef IDLE
static const int idle = 1;
#else
static const int idle = 0;
#endif

#ifndef CALL_NS
#define CALL_NS 0
#endif

static int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void say(const char *format, ...) {
    if (idle) return;
    va_list args;
    va_start(args, format);
    log_size += vsnprintf(log_text + log_size, sizeof log_text - log_size, format, args);
    va_end(args);
    if (log_size > sizeof log_text) abort();
}

static long setting(const char *name, long fallback) {
    const char *text = idle ? NULL : getenv(name);
    return text && *text ? atol(text) : fallback;
}

/* The error that the test requests from a call. */
static Result wanted_error(const char *name) {
    if (idle) return SUCCESS;
    const char *at = getenv("FAKE_CUDA_FAIL");
    size_t n = strlen(name);
    for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, n) && at[n] == '=') return atoi(at + n + 1);
    return SUCCESS;
}

/* The compute capability of a device, 0 if there is no such device. */
static int arch(int device) {
    const char *at = getenv("FAKE_CUDA_ARCHS");
    if (!at || !*at) at = "90,80";
    for (int i = 0; i < device && at; i++) at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    return at && device >= 0 && device < MAX_DEVICES ? atoi(at) : 0;
}

#define EXPECT(condition, error) do { if (!(condition)) return error; } while (0)
#define CALL(name, ...) \
    do { \
        say(#name __VA_ARGS__); \
        say("\n"); \
        if (setting("FAKE_CUDA_TIME", 0)) usleep(setting("FAKE_CUDA_TIME", 0)); \
        if (CALL_NS) for (int64_t end = clock_ns() + CALL_NS; clock_ns() < end;) {} \
        EXPECT(!wanted_error(#name), wanted_error(#name)); \
        EXPECT(initialized || !strcmp(#name, "cuInit"), NOT_INITIALIZED); \
    } while (0)
#define IN_CONTEXT(its) EXPECT(current && current == (its), INVALID_CONTEXT)

/* --- the machine --- */

Result cuInit(unsigned flags) {
    CALL(cuInit, " %u", flags);
    initialized = 1;
    for (int i = 0; i < MAX_DEVICES; i++) contexts[i].device = i;
    return SUCCESS;
}

Result cuDriverGetVersion(int *version) {
    CALL(cuDriverGetVersion);
#ifdef OLD
    *version = (int)setting("FAKE_CUDA_VERSION", 11080);
#else
    *version = (int)setting("FAKE_CUDA_VERSION", 12080);
#endif
    return SUCCESS;
}

Result cuDeviceGetCount(int *count) {
    CALL(cuDeviceGetCount);
    for (*count = 0; arch(*count);) ++*count;
    return SUCCESS;
}

Result cuDeviceGet(int *device, int ordinal) {
    CALL(cuDeviceGet, " %d", ordinal);
    EXPECT(arch(ordinal), INVALID_DEVICE);
    *device = ordinal;
    return SUCCESS;
}

Result cuDeviceGetName(char *name, int length, int device) {
    CALL(cuDeviceGetName);
    snprintf(name, length, "Fake H100 %d", device);
    return SUCCESS;
}

Result cuDeviceGetPCIBusId(char *id, int length, int device) {
    CALL(cuDeviceGetPCIBusId);
    snprintf(id, length, "0000:0%d:00.0", device + 1);
    return SUCCESS;
}

Result cuDeviceTotalMem(size_t *bytes, int device) {
    CALL(cuDeviceTotalMem, " %d", device);
    *bytes = setting("FAKE_CUDA_MEMORY", MEMORY);
    return SUCCESS;
}

Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    CALL(cuDeviceGetAttribute, " %d", attribute);
    switch (attribute) { /* the numbers of cuda.h */
        case 75: *value = arch(device) / 10; return SUCCESS;
        case 76: *value = arch(device) % 10; return SUCCESS;
        case 16: *value = 132; return SUCCESS;    /* multiprocessors */
        case 97: *value = 232448; return SUCCESS; /* shared memory of a block, opt-in */
        case 81: *value = 233472; return SUCCESS; /* shared memory of a multiprocessor */
        case 111: *value = 1024; return SUCCESS;  /* of which each block takes these for itself */
        case 39: *value = 2048; return SUCCESS;   /* threads of a multiprocessor */
        case 106: *value = 32; return SUCCESS;    /* blocks of a multiprocessor */
        case 82: *value = 65536; return SUCCESS;  /* registers of a multiprocessor */
        default: return INVALID_VALUE;
    }
}

/* --- contexts --- */

Result cuDevicePrimaryCtxRetain(Context **context, int device) {
    CALL(cuDevicePrimaryCtxRetain, " %d", device);
    *context = &contexts[device];
    contexts[device].retained++;
    return SUCCESS;
}

Result cuCtxSetCurrent(Context *context) {
    EXPECT(!wanted_error("cuCtxSetCurrent"), wanted_error("cuCtxSetCurrent"));
    EXPECT(!context || context->retained, INVALID_CONTEXT);
    current = context;
    return SUCCESS;
}

Result cuCtxGetCurrent(Context **context) {
    *context = current;
    return SUCCESS;
}

Result cuDeviceCanAccessPeer(int *can, int device, int peer) {
    CALL(cuDeviceCanAccessPeer, " %d %d", device, peer);
    *can = device != peer && setting("FAKE_CUDA_PEERS", 1);
    return SUCCESS;
}

Result cuCtxEnablePeerAccess(Context *peer, unsigned flags) {
    CALL(cuCtxEnablePeerAccess, " %d", peer->device);
    EXPECT(current && !flags, INVALID_VALUE);
    EXPECT(!current->peers[peer->device], PEER_ACCESS_ALREADY_ENABLED);
    current->peers[peer->device] = 1;
    return SUCCESS;
}

/* --- memory: a header with the size precedes each allocation --- */

static void *piece_new(size_t size, size_t *used) {
    char *piece = *used + size > (size_t)setting("FAKE_CUDA_MEMORY", MEMORY)
                      ? NULL : aligned_alloc(HEADER, HEADER + (size + HEADER - 1) / HEADER * HEADER);
    if (!piece) return NULL;
    *(size_t *)piece = size;
    *used += size;
    return piece + HEADER;
}

static void piece_free(void *memory, size_t *used) {
    char *piece = (char *)memory - HEADER;
    *used -= *(size_t *)piece;
    free(piece);
}

Result cuMemGetInfo(size_t *free_bytes, size_t *total) {
    CALL(cuMemGetInfo);
    EXPECT(current, INVALID_CONTEXT);
    *total = setting("FAKE_CUDA_MEMORY", MEMORY);
    *free_bytes = *total - current->used;
    return SUCCESS;
}

Result cuMemAlloc(Pointer *memory, size_t size) {
    CALL(cuMemAlloc, " %zu", size);
    EXPECT(current, INVALID_CONTEXT);
    EXPECT(!capturing, CAPTURE_UNSUPPORTED);
    EXPECT(size, INVALID_VALUE);
    *memory = (Pointer)piece_new(size, &current->used);
    return *memory ? SUCCESS : OUT_OF_MEMORY;
}

Result cuMemFree(Pointer memory) {
    CALL(cuMemFree);
    EXPECT(current, INVALID_CONTEXT);
    EXPECT(!capturing, CAPTURE_UNSUPPORTED);
    piece_free((void *)memory, &current->used);
    return SUCCESS;
}

Result cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
    CALL(cuMemHostAlloc, " %zu %u", size, flags);
    EXPECT(current, INVALID_CONTEXT);
    *memory = piece_new(size, &pinned);
    return *memory ? SUCCESS : OUT_OF_MEMORY;
}

Result cuMemFreeHost(void *memory) {
    CALL(cuMemFreeHost);
    piece_free(memory, &pinned);
    return SUCCESS;
}

/* --- work --- */

static void run(const Node *node) {
    if (idle) return;
    if (node->what == 'c') memmove((void *)node->to, (void *)node->from, node->size);
    if (node->what == 's') memset((void *)node->to, (int)node->from, node->size);
    if (node->what == 'e') ((Event *)node->to)->at = now += 1.5;
    for (int64_t i = 0; node->what == 'k' && i < node->words[1]; i++)
        ((int64_t *)node->words[0])[i] += node->words[2];
}

static Result give(Stream *stream, Node node) {
    EXPECT(stream, INVALID_HANDLE);
    IN_CONTEXT(stream->context);
    if (idle || !stream->captured) return run(&node), SUCCESS;
    EXPECT(stream->captured->n < MAX_NODES, INVALID_VALUE);
    stream->captured->nodes[stream->captured->n++] = node;
    return SUCCESS;
}

Result cuMemsetD8Async(Pointer to, unsigned char value, size_t size, Stream *stream) {
    CALL(cuMemsetD8Async, " %d %zu", value, size);
    return give(stream, (Node){'s', to, value, size, {0}});
}

Result cuMemcpyHtoDAsync(Pointer to, const void *from, size_t size, Stream *stream) {
    CALL(cuMemcpyHtoDAsync, " %zu", size);
    return give(stream, (Node){'c', to, (Pointer)from, size, {0}});
}

Result cuMemcpyDtoHAsync(void *to, Pointer from, size_t size, Stream *stream) {
    CALL(cuMemcpyDtoHAsync, " %zu", size);
    return give(stream, (Node){'c', (Pointer)to, from, size, {0}});
}

Result cuMemcpyDtoDAsync(Pointer to, Pointer from, size_t size, Stream *stream) {
    CALL(cuMemcpyDtoDAsync, " %zu", size);
    return give(stream, (Node){'c', to, from, size, {0}});
}

Result cuMemcpyPeerAsync(
    Pointer to, Context *to_context, Pointer from, Context *from_context, size_t size, Stream *stream
) {
    CALL(cuMemcpyPeerAsync, " %d<-%d %zu", to_context->device, from_context->device, size);
    EXPECT(to_context == stream->context && from_context->retained, INVALID_CONTEXT);
    return give(stream, (Node){'c', to, from, size, {0}});
}

Result cuLaunchKernel(
    Module *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
    unsigned shared, Stream *stream, void **params, void **extra
) {
    CALL(cuLaunchKernel, " %s %u,%u,%u %u,%u,%u %u", f->name, gx, gy, gz, bx, by, bz, shared);
    EXPECT(f->what == 'f' && f->context == current, INVALID_HANDLE);
    EXPECT(params && !extra && (idle || (int)shared <= f->shared), INVALID_VALUE);
    Node node = {'k', 0, 0, 0, {0}};
    memcpy(node.words, params[0], sizeof node.words);
    return give(stream, node);
}

/* --- streams and events --- */

Result cuStreamCreate(Stream **stream, unsigned flags) {
    CALL(cuStreamCreate, " %u", flags);
    EXPECT(current, INVALID_CONTEXT);
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = current;
    return SUCCESS;
}

Result cuStreamDestroy(Stream *stream) {
    CALL(cuStreamDestroy);
    free(stream);
    return SUCCESS;
}

Result cuStreamSynchronize(Stream *stream) {
    CALL(cuStreamSynchronize);
    EXPECT(!stream->captured, CAPTURE_UNSUPPORTED);
    return SUCCESS;
}

Result cuStreamQuery(Stream *stream) {
    CALL(cuStreamQuery);
    EXPECT(!stream->captured, CAPTURE_UNSUPPORTED);
    return setting("FAKE_CUDA_BUSY", !idle) ? NOT_READY : SUCCESS;
}

Result cuEventCreate(Event **event, unsigned flags) {
    CALL(cuEventCreate, " %u", flags);
    EXPECT(current, INVALID_CONTEXT);
    *event = calloc(1, sizeof **event);
    (*event)->context = current;
    (*event)->timing = !(flags & 2);
    return SUCCESS;
}

Result cuEventDestroy(Event *event) {
    CALL(cuEventDestroy);
    free(event);
    return SUCCESS;
}

Result cuEventRecord(Event *event, Stream *stream) {
    CALL(cuEventRecord);
    EXPECT(event->context == stream->context, INVALID_HANDLE);
    event->at = now += 1.5;
    return SUCCESS;
}

Result cuEventRecordWithFlags(Event *event, Stream *stream, unsigned flags) {
    CALL(cuEventRecordWithFlags, " %u", flags);
    EXPECT(flags == 1 && stream->captured, INVALID_VALUE); /* external: a node of the graph */
    return give(stream, (Node){'e', (Pointer)event, 0, 0, {0}});
}

Result cuEventQuery(Event *event) {
    CALL(cuEventQuery, " %g", event->at);
    return setting("FAKE_CUDA_BUSY", !idle) ? NOT_READY : SUCCESS;
}

Result cuEventSynchronize(Event *event) {
    CALL(cuEventSynchronize, " %g", event->at);
    return SUCCESS;
}

Result cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    CALL(cuStreamWaitEvent, " %d on %d %u", stream->context->device, event->context->device, flags);
    return SUCCESS;
}

Result cuEventElapsedTime(float *ms, Event *begin, Event *end) {
    CALL(cuEventElapsedTime);
    EXPECT(begin->timing && end->timing, INVALID_HANDLE);
    *ms = (float)(end->at - begin->at);
    return SUCCESS;
}

/* --- kernels --- */

Result cuModuleLoadData(Module **module, const void *image) {
    CALL(cuModuleLoadData, " %.20s", (const char *)image);
    EXPECT(current, INVALID_CONTEXT);
    EXPECT(idle || !strncmp(image, "IMAGE", 5), INVALID_IMAGE);
    *module = calloc(2, sizeof **module);  /* itself and its kernel */
    (*module)[0] = (Module){current, 'm', "", 0};
    (*module)[1] = (Module){current, 'f', "add", DEFAULT_SHARED};
    return SUCCESS;
}

Result cuModuleUnload(Module *module) {
    CALL(cuModuleUnload);
    EXPECT(module->what == 'm', INVALID_HANDLE);
    free(module);
    return SUCCESS;
}

Result cuModuleGetFunction(Module **function, Module *module, const char *name) {
    CALL(cuModuleGetFunction, " %s", name);
    EXPECT(module->what == 'm', INVALID_HANDLE);
    EXPECT(idle || !strcmp(name, "add"), NOT_FOUND);
    *function = module + 1;
    return SUCCESS;
}

Result cuFuncLoad(Module *function) {
    CALL(cuFuncLoad);
    EXPECT(function->what == 'f', INVALID_HANDLE);
    return SUCCESS;
}

Result cuFuncSetAttribute(Module *function, int attribute, int value) {
    CALL(cuFuncSetAttribute, " %d %d", attribute, value);
    EXPECT(function->what == 'f' && attribute == 8 && value <= 232448, INVALID_VALUE);
    function->shared = value;
    return SUCCESS;
}

/* --- graphs --- */

Result cuStreamBeginCapture(Stream *stream, int mode) {
    CALL(cuStreamBeginCapture, " %d", mode);
    EXPECT(!stream->captured, INVALID_VALUE);
    stream->captured = calloc(1, sizeof *stream->captured);
    capturing = mode != RELAXED;
    return SUCCESS;
}

Result cuStreamEndCapture(Stream *stream, Graph **graph) {
    capturing = 0;
    *graph = stream->captured;
    stream->captured = NULL;
    CALL(cuStreamEndCapture);
    return SUCCESS;
}

Result cuGraphInstantiate(Graph **exec, Graph *graph, unsigned long long flags) {
    CALL(cuGraphInstantiate, " %d nodes %llu", graph->n, flags);
    *exec = malloc(sizeof **exec);
    **exec = *graph;
    return SUCCESS;
}

Result cuGraphDestroy(Graph *graph) {
    CALL(cuGraphDestroy);
    EXPECT(graph, INVALID_VALUE);
    free(graph);
    return SUCCESS;
}

Result cuGraphUpload(Graph *exec, Stream *stream) {
    CALL(cuGraphUpload);
    IN_CONTEXT(stream->context);
    EXPECT(exec && !stream->captured, INVALID_VALUE);
    return SUCCESS;
}

Result cuGraphLaunch(Graph *exec, Stream *stream) {
    CALL(cuGraphLaunch);
    IN_CONTEXT(stream->context);
    for (int i = 0; i < exec->n; i++) run(&exec->nodes[i]);
    return SUCCESS;
}

Result cuGraphExecDestroy(Graph *exec) {
    CALL(cuGraphExecDestroy);
    free(exec);
    return SUCCESS;
}

/* --- finding them --- */

/* NVRTC asks the driver for a table of private calls, by its size first; here it has none. */
Result cuGetExportTable(const void **table, const void *id) {
    static const size_t nothing[1] = {sizeof nothing};
    (void)id;
    *table = nothing;
    return SUCCESS;
}

#ifndef OLD
#define CALLS(F) \
    F(cuInit) F(cuDriverGetVersion) F(cuDeviceGetCount) F(cuDeviceGet) F(cuDeviceGetName) \
    F(cuDeviceGetPCIBusId) F(cuDeviceTotalMem) F(cuDeviceGetAttribute) \
    F(cuDevicePrimaryCtxRetain) F(cuCtxSetCurrent) F(cuCtxGetCurrent) F(cuDeviceCanAccessPeer) \
    F(cuCtxEnablePeerAccess) F(cuMemGetInfo) F(cuMemAlloc) F(cuMemFree) F(cuMemHostAlloc) \
    F(cuMemFreeHost) F(cuMemsetD8Async) F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync) \
    F(cuMemcpyDtoDAsync) F(cuMemcpyPeerAsync) F(cuLaunchKernel) F(cuStreamCreate) \
    F(cuStreamDestroy) F(cuStreamSynchronize) F(cuEventCreate) F(cuEventDestroy) \
    F(cuEventRecord) F(cuEventSynchronize) F(cuStreamWaitEvent) F(cuEventElapsedTime) \
    F(cuModuleLoadData) F(cuModuleUnload) F(cuModuleGetFunction) F(cuFuncSetAttribute) \
    F(cuStreamBeginCapture) F(cuStreamEndCapture) F(cuGraphInstantiate) F(cuGraphDestroy) \
    F(cuGraphLaunch) F(cuGraphExecDestroy) F(cuStreamQuery) F(cuEventQuery) \
    F(cuEventRecordWithFlags) F(cuGraphUpload) F(cuFuncLoad)

/* Hands out every call; the versions that are asked for differ in names only. */
Result cuGetProcAddress_v2(
    const char *name, void **function, int version, uint64_t flags, void *status
) {
    static const struct { const char *name; void *function; } table[] = {
#define ENTRY(call) {#call, (void *)call},
        CALLS(ENTRY)
    };
    (void)version, (void)flags, (void)status;
    *function = NULL;
    const char *hidden = getenv("FAKE_CUDA_HIDE");
    if (hidden && !strcmp(name, hidden)) return NOT_FOUND;
    if (!strcmp(name, "cuGraphInstantiateWithFlags")) name = "cuGraphInstantiate";
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(name, table[i].name)) *function = table[i].function;
    return *function ? SUCCESS : NOT_FOUND;
}
#endif
