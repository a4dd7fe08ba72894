// Recurrences over states in slots (graph/ops/recurrent.py), in float32.
//
// A block computes all tokens of some channels or columns in their order, with their state in
// registers. The state is loaded where a token does not go on from the one before it, and stored
// where the next one does not write to the same slot. So the bits of a token depend on its sequence
// only. Tested by tests/kernels/test_recurrent.py.
#include "activations.cuh"
#include "device.cuh"

// A token and the slots of its states.
struct Step {
    int token, src, dst;  // src < 0: the state before is zeros
    bool loads, stores;
};

// Slots of tokens: [2, n_tokens].
DEVICE int slot_before(const Tensor &slots, int t) {
    return reinterpret_cast<const int *>(slots.data)[2 * t];
}

DEVICE int slot_after(const Tensor &slots, int t) {
    return reinterpret_cast<const int *>(slots.data)[2 * t + 1];
}

// True if the token goes on from the state that the token before it left.
DEVICE bool goes_on(const Tensor &slots, int t) {
    return t > 0 && t < slots.ne[1] && slot_before(slots, t) == slot_after(slots, t - 1);
}

// The step of token t; false if a slot is invalid. The same for all threads.
DEVICE bool find_step(const Params &p, const Tensor &states, const Tensor &slots, int t,
                      Step &step) {
    step = {t, slot_before(slots, t), slot_after(slots, t), !goes_on(slots, t), true};
    const i64 n = states.ne[1];
    const bool valid = step.src < n && step.dst >= 0 && step.dst < n;
    if (!valid && threadIdx.x == 0) fail(p, step.src < n ? step.dst : step.src, n);
    step.stores = !goes_on(slots, t + 1) || slot_after(slots, t + 1) != step.dst;
    return valid;
}

DEVICE float *state_of(const Tensor &states, int slot) {
    return reinterpret_cast<float *>(states.data + slot * states.nb[1]);
}

DEVICE float *floats_at(const Tensor &t, i64 i0, i64 i1, i64 i2) {
    return reinterpret_cast<float *>(at(t, 4 * i0, i1, i2, 0));
}

// --- convolution ---

constexpr int CONV_THREADS = 128;
constexpr int MAX_TAPS = 8;

// A thread has a channel. Parameter 0 is 1 if there is a bias.
KERNEL(ssm_conv_f32, CONV_THREADS, 8) {
    const Tensor &out = p.t[0], &x = p.t[1], &w = p.t[2], &states = p.t[3], &slots = p.t[4];
    const i64 c = blockIdx.x * static_cast<i64>(CONV_THREADS) + threadIdx.x, n = out.ne[0];
    const int n_taps = static_cast<int>(w.ne[0]);
    const bool is_channel = c < n;
    const float bias =
        p.param[0].i && is_channel ? reinterpret_cast<const float *>(p.t[5].data)[c] : 0.0f;
    float taps[MAX_TAPS] = {}, columns[MAX_TAPS] = {};  // the last ones are those of the token
#pragma unroll
    for (int k = 0; k < MAX_TAPS; k++)
        if (k < n_taps && is_channel) taps[k] = *floats_at(w, k, c, 0);
    const int n_tokens = static_cast<int>(out.ne[1]);
    float next = is_channel ? *floats_at(x, c, 0, 0) : 0.0f;
    for (int t = 0; t < n_tokens; t++) {
        Step step;
        if (!find_step(p, states, slots, t, step)) return;
        if (!is_channel) continue;
        const float last = next;
        if (t + 1 < n_tokens) next = *floats_at(x, c, t + 1, 0);  // on its way meanwhile
        float y = 0.0f;
#pragma unroll
        for (int k = 0; k < MAX_TAPS; k++) {
            if (k >= n_taps) continue;
            if (k == n_taps - 1)
                columns[k] = last;
            else if (step.loads)
                columns[k] = step.src < 0 ? 0.0f : state_of(states, step.src)[k * n + c];
            y = fmaf(taps[k], columns[k], y);
        }
        *floats_at(out, c, t, 0) = y + bias;
#pragma unroll
        for (int k = 0; k < MAX_TAPS - 1; k++) {
            if (k >= n_taps - 1) continue;
            columns[k] = columns[k + 1];
            if (step.stores) state_of(states, step.dst)[k * n + c] = columns[k];
        }
    }
}

// --- matrices of states: a lane has a column of a block, a warp some rows ---

constexpr int ROWS = 16;       // of a warp, in registers
constexpr int MAX_WARPS = 16;

// The part of a matrix that a thread has. Blocks of columns follow each other in memory.
struct Part {
    int first, n;    // this warp's first row, and its number of rows
    int column;      // of the matrix
    bool is_column;  // false for lanes beyond the matrix
    i64 begin;       // of the first row's element, in floats
    int stride;      // between rows
};

DEVICE Part part_of(i64 matrix, int n_rows, int n_columns, int block) {
    Part part;
    const int begin = block * WARP, width = n_columns - begin < WARP ? n_columns - begin : WARP;
    part.first = warp_id() * ROWS;
    part.n = n_rows - part.first < ROWS ? n_rows - part.first : ROWS;
    part.column = begin + lane_id();
    part.is_column = lane_id() < width;
    part.stride = width;
    part.begin = (matrix * n_columns + begin) * n_rows + part.first * part.stride + lane_id();
    return part;
}

DEVICE void load_part(const Part &part, const Tensor &states, int slot, float (&s)[ROWS]) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const bool is_here = slot >= 0 && i < part.n && part.is_column;
        s[i] = is_here ? state_of(states, slot)[part.begin + i * part.stride] : 0.0f;
    }
}

DEVICE void store_part(const Part &part, const Tensor &states, int slot, const float (&s)[ROWS]) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (i < part.n && part.is_column)
            state_of(states, slot)[part.begin + i * part.stride] = s[i];
}

// Sums over the rows of all warps, in their order, for each column: of up to two numbers at once.
struct RowSums {
    float (*shared)[2][MAX_WARPS][WARP];  // two, in turns: threads may still read the other one
    int turn;

    template <int N> DEVICE void of(float (&v)[N]) {
        const int n_warps = static_cast<int>(blockDim.x) / WARP;
        if (n_warps == 1) return;
        turn ^= 1;
#pragma unroll
        for (int i = 0; i < N; i++) shared[turn][i][warp_id()][lane_id()] = v[i];
        sync_block();
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[i] = 0.0f;
            for (int w = 0; w < n_warps; w++) v[i] += shared[turn][i][w][lane_id()];
        }
    }
};

// This warp's rows of a vector of a token. Rows beyond the matrix are 0, as in the state.
DEVICE void load_rows(const Part &part, const float *from, float (&rows)[ROWS]) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) rows[i] = i < part.n ? from[i] : 0.0f;
}

// --- selective scan ---

// CHANNELS: heads of one element, with a decay for each number of a state (Mamba 1); else one decay
// for each head. Parameter 0 is 1 if there is d.
template <bool CHANNELS> DEVICE void scan(const Params &p) {
    __shared__ float shared[2][2][MAX_WARPS][WARP];
    RowSums sums = {shared, 0};
    const Tensor &out = p.t[0], &x = p.t[1], &dt = p.t[2], &a = p.t[3], &b = p.t[4], &c = p.t[5];
    const Tensor &states = p.t[6], &slots = p.t[7];
    const int d_state = static_cast<int>(b.ne[0]), n_head = static_cast<int>(out.ne[1]);
    const int n_columns = CHANNELS ? n_head : static_cast<int>(out.ne[0]);
    const int blocks = (n_columns + WARP - 1) / WARP, block = static_cast<int>(blockIdx.x);
    const Part part = part_of(block / blocks, d_state, n_columns, block % blocks);
    const int column = part.is_column ? part.column : 0;  // so that all lanes may load
    const int h = CHANNELS ? column : block / blocks, i = CHANNELS ? 0 : column;
    const int group = CHANNELS ? 0 : h * static_cast<int>(b.ne[1]) / n_head;
    const float skip = p.param[0].i ? reinterpret_cast<const float *>(p.t[8].data)[h] : 0.0f;
    float s[ROWS] = {}, rates[ROWS] = {};
    if (CHANNELS) {
#pragma unroll
        for (int j = 0; j < ROWS; j++)
            if (j < part.n) rates[j] = *floats_at(a, part.first + j, h, 0);
    } else {
        rates[0] = *floats_at(a, 0, h, 0);
    }
    const int n_tokens = static_cast<int>(out.ne[2]);
    struct {
        float b[ROWS], dt;
    } now, next;
    auto load = [&](int t) {
        load_rows(part, floats_at(b, part.first, group, t), next.b);
        next.dt = *floats_at(dt, h, t, 0);
    };
    load(0);
    for (int t = 0; t < n_tokens; t++) {
        Step step;
        if (!find_step(p, states, slots, t, step)) return;
        if (step.loads) load_part(part, states, step.src, s);
        float from[ROWS];
        const float v = *floats_at(x, i, h, t);
        load_rows(part, floats_at(c, part.first, group, t), from);
        now = next;
        load(t + 1 < n_tokens ? t + 1 : t);  // on its way while this token computes
        const float size = softplus(now.dt), added = size * v;
        const float decay = CHANNELS ? 0.0f : expf(size * rates[0]);
        float y[1] = {0.0f};
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            s[j] = fmaf(added, now.b[j], s[j] * (CHANNELS ? expf(size * rates[j]) : decay));
            y[0] = fmaf(s[j], from[j], y[0]);
        }
        sums.of(y);
        if (warp_id() == 0 && part.is_column) *floats_at(out, i, h, t) = fmaf(skip, v, y[0]);
        if (step.stores) store_part(part, states, step.dst, s);
    }
}

KERNEL(ssm_scan_heads_f32, MAX_WARPS * WARP, 1) { scan<false>(p); }
KERNEL(ssm_scan_channels_f32, MAX_WARPS * WARP, 1) { scan<true>(p); }

// --- gated delta net ---

// A token's key, the decays of the state before it, and its value. CHANNELS: a decay for each row of
// the state, an element of the key; else one for all.
template <bool CHANNELS> struct DeltaToken {
    static constexpr int DECAYS = CHANNELS ? ROWS : 1;
    float k[ROWS], decay[DECAYS], v;  // decays are logarithms until `fade`

    DEVICE void fade() {
#pragma unroll
        for (int i = 0; i < DECAYS; i++) decay[i] = expf(decay[i]);
    }

    DEVICE float decay_of(int i) const { return decay[CHANNELS ? i : 0]; }

    // The sum over this thread's rows of the key times the state; CHANNELS: after its decay.
    DEVICE float known(const float (&s)[ROWS]) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            sum = fmaf(CHANNELS ? decay_of(i) * k[i] : k[i], s[i], sum);
        return sum;
    }
};

// A token's sum of its key times the state is computed with the result of the token before it.
// Parameter 0 is 1 if value heads use key heads in turn.
template <bool CHANNELS> DEVICE void delta_net(const Params &p) {
    __shared__ float shared[2][2][MAX_WARPS][WARP];
    RowSums sums = {shared, 0};
    const Tensor &out = p.t[0], &q = p.t[1], &k = p.t[2], &v = p.t[3], &g = p.t[4], &beta = p.t[5];
    const Tensor &states = p.t[6], &slots = p.t[7];
    const int d = static_cast<int>(out.ne[0]), n_v = static_cast<int>(out.ne[1]);
    const int n_k = static_cast<int>(q.ne[1]), n_tokens = static_cast<int>(out.ne[2]);
    const int blocks = (d + WARP - 1) / WARP, h = static_cast<int>(blockIdx.x) / blocks;
    const int key_head = p.param[0].i ? h % n_k : h * n_k / n_v;
    const Part part = part_of(h, d, d, static_cast<int>(blockIdx.x) % blocks);
    const int column = part.is_column ? part.column : 0;
    float s[ROWS] = {}, known = 0.0f;
    DeltaToken<CHANNELS> now, next;
    auto load = [&](int t) {
        load_rows(part, floats_at(k, part.first, key_head, t), next.k);
        next.v = *floats_at(v, column, h, t);
        const float *logs = CHANNELS ? floats_at(g, part.first, h, t) : floats_at(g, h, t, 0);
#pragma unroll
        for (int i = 0; i < DeltaToken<CHANNELS>::DECAYS; i++)
            next.decay[i] = i < part.n ? logs[i] : 0.0f;
    };
    load(0);
    next.fade();
    for (int t = 0; t < n_tokens; t++) {
        Step step;
        if (!find_step(p, states, slots, t, step)) return;
        float query[ROWS];
        const float rate = *floats_at(beta, h, t, 0);
        load_rows(part, floats_at(q, part.first, key_head, t), query);
        now = next;
        const int following = t + 1 < n_tokens ? t + 1 : t;
        if (!CHANNELS) load(following);  // on its way while this token computes
        if (step.loads) {
            load_part(part, states, step.src, s);
            float sum[1] = {now.known(s)};
            sums.of(sum);
            known = sum[0];
        }
        const float change = (now.v - (CHANNELS ? known : known * now.decay[0])) * rate;
        float y = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            s[i] = fmaf(now.k[i], change, s[i] * now.decay_of(i));
            y = fmaf(query[i], s[i], y);
        }
        if (CHANNELS) load(following);  // there are no registers for both tokens
        next.fade();
        float both[2] = {y, next.known(s)};
        sums.of(both);
        if (warp_id() == 0 && part.is_column) *floats_at(out, column, h, t) = both[0];
        known = both[1];
        if (step.stores) store_part(part, states, step.dst, s);
    }
}

KERNEL(gated_delta_net_f32, MAX_WARPS * WARP, 1) { delta_net<false>(p); }
KERNEL(gated_delta_net_channels_f32, MAX_WARPS * WARP, 1) { delta_net<true>(p); }
