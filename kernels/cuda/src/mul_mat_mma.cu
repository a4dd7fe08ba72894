// Products of quantized weights with many columns, on tensor cores. Compiled with -DTYPE=Q4_0, ...
// (blocks.cuh) and the shape of a tile:
//     WARPS_M      warps that share the rows: each has MT * 16 of them, with all columns
//     WARPS_K      groups of WARPS_M warps that take chunks of K in turn
//     MT, NT       tiles of the tensor cores, 16 rows times 8 columns, that a warp computes
//     STAGES       steps of 128 values in shared memory: one is multiplied, the others copied
//     MATRICES     2: a gate and its factor; MT is 2, a warp has 16 rows of both
//     GATE         the gate's function, GluOp
//     STAGE_BYTES  bytes of a stage, as ops/tensor_core.py computes them
//     BLOCKS_PER_SM  at once, which limits the registers
//
// Of each tile, a lane has rows lane / 4 and lane / 4 + 8, and columns 2 * (lane % 4) and the next.
// It unpacks the weights of its rows from the raw bytes into tensor-core operands. Each element is
// summed in the order of blocks.cuh, in two accumulators, a chunk's and the total: so its bits do
// not depend on the shape of the tile. If there are several groups, their chunks' sums go through
// shared memory, and each group has the totals of a part of the elements.
//
// Tensors: the result, weights, columns, and the factor's weights if there are two matrices.
// Prepared: columns in form q8; with experts the lists of group_by_expert.cu.
#include "activations.cuh"
#include "expert_runs.cuh"
#include "tiles.cuh"

typedef TYPE Type;
typedef Staging<Type> Rows;

constexpr int GROUP = WARPS_M * WARP;  // threads
constexpr int THREADS = WARPS_K * GROUP;
constexpr int N_ROWS = 16 * MT * WARPS_M;  // multiplied by a block, of both matrices
constexpr int OUT_ROWS = N_ROWS / MATRICES;
constexpr int N_COLS = 8 * NT;
static_assert(MATRICES == 1 || MT == 2, "a tile of each matrix");

constexpr int ROW_SLOT = PIECE * (Rows::PIECES | 1);
constexpr int COL_SLOT = COLUMN_SLOT<Type>;
constexpr int GROUP_STAGE = N_ROWS * ROW_SLOT + N_COLS * COL_SLOT;
constexpr int STAGE = WARPS_K * GROUP_STAGE;
static_assert(STAGE_BYTES == STAGE, "shared memory for what ops/tensor_core.py thinks");

constexpr int N_OUT = 4 * MT * NT;              // elements of a thread, of both matrices
constexpr int MATRIX_OUT = N_OUT / MATRICES;    // of one
constexpr int OWN_OUT = MATRIX_OUT / WARPS_K;   // of these, whose totals the thread has
static_assert(OWN_OUT * WARPS_K == MATRIX_OUT, "a part for each group");

// parameters
constexpr int N_EXPERTS = 0;  // 0: a matrix for each batch
constexpr int N_USED = 1;     // experts of a token
constexpr int ALPHA = 2;      // of a GLU
constexpr int LIMIT = 3;

// Whether all rows of a matrix begin equally far behind a multiple of a piece.
constexpr bool ROWS_ARE_PIECES = Type::VALUES == CHUNK && Type::BYTES % PIECE == 0;

// --- what a block computes ---

struct Work {
    const char *matrix[MATRICES];  // from the tile's first row on
    u32 row_bytes[MATRICES];
    int first_row, n_rows;  // n_rows: from first_row to the matrix's end
    int n_blocks;           // blocks of 32 values in a row
    int first_column, n_columns;
    const int *pairs;       // an expert's (token, slot), as token * n_used + slot
    const char *columns;    // form q8

    DEVICE int n_steps() const { return (n_blocks + STEP_BLOCKS - 1) / STEP_BLOCKS; }
    DEVICE int n_chunks() const { return (n_blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS; }
    DEVICE i64 kp() const { return static_cast<i64>(n_chunks()) * CHUNK; }
};

// Row r of the N_ROWS: its matrix, and its index there.
DEVICE constexpr int matrix_of(int r) { return MATRICES == 1 ? 0 : r / 16 % 2; }
DEVICE constexpr int row_in(int r) { return MATRICES == 1 ? r : r / 32 * 16 + r % 16; }

// Grid: (tile of rows, tile of columns of a matrix or of all experts, matrix).
DEVICE bool find_work(const Params &p, Work &w, int &batch) {
    const Tensor &a = p.t[1], &x = p.t[2];
    const int n_experts = static_cast<int>(p.param[N_EXPERTS].i);
    if (n_experts > 0) {
        ExpertRun run;
        if (!find_run<N_COLS>(p, n_experts, blockIdx.y, run)) return false;
        batch = run.expert, w.pairs = run.pairs;
        w.first_column = 0, w.n_columns = run.n;
    } else {
        // the columns of all batches that share a matrix
        const i64 n = gridDim.z == 1 ? n_rows(x) : n_rows(x) / gridDim.z;
        batch = blockIdx.z;
        w.pairs = nullptr;
        w.first_column = blockIdx.y * N_COLS;
        const int left = static_cast<int>(n) - w.first_column;
        w.n_columns = left < N_COLS ? left : N_COLS;
    }
    w.first_row = blockIdx.x * OUT_ROWS;
    w.n_rows = static_cast<int>(a.ne[1]) - w.first_row;
    w.n_blocks = static_cast<int>(a.ne[0] / BLOCK);
    w.columns = p.prepared[0];
    const int n2 = static_cast<int>(a.ne[2]);
#pragma unroll
    for (int i = 0; i < MATRICES; i++) {
        const Tensor &t = p.t[1 + 2 * i];
        w.matrix[i] = at(t, 0, w.first_row, batch % n2, batch / n2);
        w.row_bytes[i] = static_cast<u32>(t.nb[1]);
    }
    return true;
}

constexpr int UNIT = 16;  // bytes: a column's place is a multiple of it

// Find the place of the tile's column c in form q8, in units, and where its results go.
DEVICE void find_column(const Params &p, const Work &w, int batch, int c, u32 &from, char *&to) {
    const Tensor &out = p.t[0], &a = p.t[1], &x = p.t[2];
    const int ne1 = static_cast<int>(x.ne[1]);
    i64 index = 0;  // past the last column: read the first one
    to = nullptr;
    if (w.pairs != nullptr && c < w.n_columns) {
        const int pair = w.pairs[w.first_column + c], n_used = static_cast<int>(p.param[N_USED].i);
        const int token = pair / n_used, slot = pair % n_used;
        index = static_cast<i64>(token) * ne1 + slot % ne1;
        to = at(out, 0, slot, token, 0);
    } else if (c < w.n_columns) {
        const int i = w.first_column + c;
        i64 i1 = i, i2 = 0, i3 = 0;
        if (i >= ne1 || gridDim.z > 1) {
            const int n2 = static_cast<int>(a.ne[2]), repeat = static_cast<int>(x.ne[2]) / n2;
            i1 = i % ne1;
            i2 = batch % n2 * repeat + i / ne1 % repeat;
            i3 = batch / n2 * (x.ne[3] / a.ne[3]) + i / ne1 / repeat;
        }
        index = i1 + ne1 * (i2 + x.ne[2] * i3);
        to = at(out, 0, i1, i2, i3);
    }
    from = static_cast<u32>(index * (q8_column_bytes(w.kp()) / UNIT));
}

// --- copying a step into a stage, by the threads of a group ---

constexpr int ROW_LANES = Rows::PIECES <= 8 ? 8 : 16;  // lanes that copy a row
constexpr int ROWS_AT_ONCE = GROUP / ROW_LANES;
constexpr int COL_LANES = STEP / PIECE;
constexpr int COLS_AT_ONCE = GROUP / COL_LANES;
static_assert(Rows::PIECES <= ROW_LANES, "a lane for each piece");
static_assert(N_COLS <= GROUP && 16 % ROWS_AT_ONCE == 0, "a thread for each column's scales");

// What a thread copies: one piece of some rows and columns.
struct Loader {
    const Work &work;
    int thread;          // index in the group
    const u32 *columns;  // places from find_column

    DEVICE void load_rows(char *slots, int step) const {
        const int piece = thread % ROW_LANES, row = thread / ROW_LANES;
        if (piece >= Rows::PIECES) return;
        const i64 offset = Rows::begin(step) + Rows::offset(piece, step % 2);
        const int spare = -Rows::needed(piece, work.n_blocks - step * STEP_BLOCKS);
        char *to = slots + row * ROW_SLOT + PIECE * piece;
        const int last = work.n_rows - 1;  // read once, not after each copy
        u64 begins[MATRICES], row_bytes[MATRICES];
#pragma unroll
        for (int m = 0; m < MATRICES; m++) {
            begins[m] = reinterpret_cast<u64>(work.matrix[m] + offset);
            row_bytes[m] = work.row_bytes[m];
        }
#pragma unroll 8
        for (int i = 0; i < N_ROWS; i += ROWS_AT_ONCE) {
            // past the last row, copy the last one again
            const int own = row_in(i) + row;
            const u64 r = static_cast<u32>(own < last ? own : last);
            const u64 from = matrix_of(i) == 0
                                 ? begins[0] + r * row_bytes[0]
                                 : begins[MATRICES - 1] + r * row_bytes[MATRICES - 1];
            if (misalignment(from) > spare) {
                copy_async(to + i * ROW_SLOT,
                           reinterpret_cast<const char *>(from & ~static_cast<u64>(PIECE - 1)));
            }
        }
    }

    DEVICE void load_columns(char *slots, int step) const {
        const int piece = thread % COL_LANES;
        const char *const all = work.columns, *values = all + step * STEP + PIECE * piece;
        const u32 *own = columns + thread / COL_LANES;
        char *to = slots + thread / COL_LANES * COL_SLOT + PIECE * piece;
#pragma unroll
        for (int i = 0; i < N_COLS / COLS_AT_ONCE; i++) {
            copy_async(to + i * COLS_AT_ONCE * COL_SLOT,
                       values + static_cast<u64>(own[i * COLS_AT_ONCE]) * UNIT);
        }
        if (thread >= N_COLS) return;
        const i64 kp = work.kp();
        const char *place = all + static_cast<u64>(columns[thread]) * UNIT;
        char *slot = slots + thread * COL_SLOT;
        copy_async(slot + COLUMN_SCALES, q8_scales(place, kp) + step * STEP_BLOCKS);
        if (Type::HAS_MIN) copy_async(slot + COLUMN_SUMS, q8_sums(place, kp) + step * STEP_BLOCKS);
    }
};

// --- multiplying ---

// Products of bytes as floats. Their sums begin at the bits of START; there, the bits of a float
// count its steps, which are 1. So they become START + sum without a conversion of integers, which is
// slower than a sum of floats. Sums are below 2**22. START takes 4 registers, which types with minima
// do not have, unless their scales are unpacked before.
constexpr bool HAS_START = !Type::HAS_MIN || Type::PACKS_SCALES;
constexpr float START = 12582912.0f;  // 1.5 * 2**23
constexpr int START_BITS = HAS_START ? 0x4b400000 : 0;

template <int N_A, int N_B>
DEVICE void multiply_bytes(int (&bits)[4], const u32 (&a)[N_A], const u32 (&b)[N_B]) {
#pragma unroll
    for (int j = 0; j < 4; j++) bits[j] = START_BITS;
    if constexpr (N_B == 2) mma_s8_k32(bits, a, b);
    else mma_s8_k16(bits, a, b[0]);
}

DEVICE float sum_of(int bits) {
    return HAS_START ? as_float(static_cast<u32>(bits)) - START : static_cast<float>(bits);
}

// Blocks to unpack at once: limited by registers.
constexpr int AT_ONCE =
    Type::HAS_SUB_SCALES || Type::HAS_SUB_MINS || Type::MANY_REGISTERS ? 1 : 2;

// The integer scale of 16 values. Its products are integers below 2**24, so all of this is exact.
struct SubScale {
    float scale, offset;

    SubScale() = default;
    DEVICE explicit SubScale(int v) : scale(static_cast<float>(v)), offset(-START * scale) {}
    DEVICE float times(int bits) const {
        static_assert(HAS_START || !Type::HAS_SUB_SCALES, "for the offset");
        return fmaf(scale, as_float(static_cast<u32>(bits)), offset);
    }
};

// Blocks of a thread's rows: operands and scales.
template <class T> struct Weights {
    typedef typename Staging<T>::View View;

    u32 operand[AT_ONCE][4];
    float scale[AT_ONCE][2], min[AT_ONCE][2];  // by block and row
    SubScale sub[AT_ONCE][2][2];               // first and second
    u32 sub_min[AT_ONCE][4];                   // operands

    // Load row r's blocks of a step from `first` on. Blocks from `n_blocks` on are beyond K.
    // `unpacked`: see unpack_scales.
    DEVICE void load(const View &view, int r, int half, int first, int n_blocks,
                     const float4 *unpacked) {
        if constexpr (T::PACKS_SCALES) {
            const float4 two = unpacked[first / 2];
            scale[0][r] = two.x, min[0][r] = two.y;
            scale[AT_ONCE - 1][r] = two.z, min[AT_ONCE - 1][r] = two.w;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int b = Staging<T>::block(half, first + i);
            centered_words<T>(view, b, lane_id() % 4, operand[i][r], operand[i][2 + r]);
            if constexpr (!T::PACKS_SCALES) T::scales(view, b, scale[i][r], min[i][r]);
            if constexpr (T::HAS_SUB_SCALES) {
                int low, high;
                T::sub_scales(view, b, low, high);
                sub[i][r][0] = SubScale(low), sub[i][r][1] = SubScale(high);
            }
            if constexpr (T::HAS_SUB_MINS) {
                mins_of<T>(view, b, sub_min[i][r], sub_min[i][2 + r]);
            }
            if (Staging<T>::ENDS_ANYWHERE && first + i >= n_blocks) {
                scale[i][r] = min[i][r] = 0.0f;  // adds nothing
            }
        }
    }

    // The exact integer products of block i with a tile's columns. `sums`: the columns' sums; they
    // become their products with minima, or the products of the second 16 values if those have their
    // own scales.
    DEVICE void multiply(float (&product)[4], float (&sums)[4], int i, const u32 *columns) const {
        constexpr bool IN_16 = T::IN_16 || T::HAS_SUB_SCALES;
        int low[4], high[4];
        if constexpr (IN_16) {
            multiply_bytes<2, 1>(low, {operand[i][0], operand[i][1]}, {columns[0]});
            multiply_bytes<2, 1>(high, {operand[i][2], operand[i][3]}, {columns[1]});
        } else {
            multiply_bytes<4, 2>(low, operand[i], {columns[0], columns[1]});
            if constexpr (T::HAS_SUB_MINS)
                multiply_bytes<4, 2>(high, sub_min[i], {columns[0], columns[1]});
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if constexpr (T::HAS_SUB_SCALES) {
                product[j] = sub[i][j / 2][0].times(low[j]) + sub[i][j / 2][1].times(high[j]);
            } else {
                product[j] = sum_of(low[j]);
                if constexpr (T::IN_16 || T::HAS_SUB_MINS) sums[j] = sum_of(high[j]);
            }
        }
    }
};

constexpr int PAIRS = STEP_BLOCKS / 2;  // of blocks

struct Step {
    const char *rows, *columns;  // slots
    int half;
    int n_blocks;                // until K ends
    const u32 *addresses;        // low bits of the addresses of the thread's rows, 2 for each tile
    u32 begin;                   // of the step in a row

    DEVICE int shift(int i) const { return misalignment(addresses[i] + begin); }
    float4 *unpacked;            // PAIRS for each row of the warp
};

// Unpack the scales and minima of a step, if the type packs them: a row in each lane. Otherwise, the
// four lanes that share a row would all do it.
template <class T> DEVICE void unpack_scales(const Step &step) {
    static_assert(!T::PACKS_SCALES || (AT_ONCE == 2 && ROWS_ARE_PIECES), "float4, one shift");
    if (!T::PACKS_SCALES || lane_id() >= 16 * MT) return;
    const int shift = step.shift(0), last_shift = step.shift(2 * MT - 1);
    const auto view = Staging<T>::view(step.rows + lane_id() * ROW_SLOT,
                                       lane_id() < 16 ? shift : last_shift, step.half);
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
        float4 two;
        T::scales(view, Staging<T>::block(step.half, 2 * i), two.x, two.y);
        T::scales(view, Staging<T>::block(step.half, 2 * i + 1), two.z, two.w);
        step.unpacked[PAIRS * lane_id() + i] = two;
    }
}

// The scales and sums of a thread's columns of a tile, by block and column.
struct Columns {
    float scale[AT_ONCE][2], sum[AT_ONCE][2] = {};

    DEVICE Columns(const char *tile, int first) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const char *slot = tile + (2 * (lane_id() % 4) + c) * COL_SLOT + 4 * first;
            load<float>(scale, c, slot + COLUMN_SCALES);
            if (Type::HAS_MIN) load<int>(sum, c, slot + COLUMN_SUMS);
        }
    }

    // Load a column's scales or sums, for one block or two.
    template <class T> static DEVICE void load(float (&to)[1][2], int c, const char *from) {
        to[0][c] = static_cast<float>(*reinterpret_cast<const T *>(from));
    }
    template <class T> static DEVICE void load(float (&to)[2][2], int c, const char *from) {
        struct alignas(8) Two {
            T x, y;
        };
        const Two two = *reinterpret_cast<const Two *>(from);
        to[0][c] = static_cast<float>(two.x);
        to[1][c] = static_cast<float>(two.y);
    }
};

// Add a step's blocks from `first` on to a thread's sums. Tile m, n is at 4 * (m * NT + n).
DEVICE void add_blocks(float (&s)[N_OUT], const Step &step, int first) {
    Weights<Type> w[MT];
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = 16 * m + 8 * r + lane_id() / 4;
            const Rows::View view =
                Rows::view(step.rows + row * ROW_SLOT, step.shift(2 * m + r), step.half);
            w[m].load(view, r, step.half, first, step.n_blocks, step.unpacked + PAIRS * row);
        }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        sync_warp();  // loads do not move across it; all loads at once would spill registers
        const char *tile = step.columns + 8 * n * COL_SLOT;
        u32 values[4];
        load_matrix_x4(values, tile + lane_id() % 8 * COL_SLOT + BLOCK * first +
                                   PIECE * (lane_id() / 8 % (2 * AT_ONCE)));
        const Columns columns(tile, first);
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if (!HAS_START && m > 0) sync_warp();  // limits the products at once
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float product[4], sums[4];
#pragma unroll
                for (int j = 0; j < 4; j++) sums[j] = columns.sum[i][j % 2];
                w[m].multiply(product, sums, i, values + 2 * i);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float &sum = s[4 * (m * NT + n) + j];
                    sum = accumulate<Type>(sum, product[j], columns.scale[i][j % 2], sums[j],
                                           w[m].scale[i][j / 2], w[m].min[i][j / 2]);
                }
            }
        }
    }
}

// --- totals ---

// Where element i of a thread of a group is in shared memory.
DEVICE float *place(char *sums, int group, int i, int thread) {
    return reinterpret_cast<float *>(sums) + (group * N_OUT + i) * GROUP + thread;
}

DEVICE void leave_sums(const float (&s)[N_OUT], char *sums, int group, int thread) {
#pragma unroll
    for (int i = 0; i < N_OUT; i++) *place(sums, group, i, thread) = s[i];
}

// The totals of a thread: of each matrix, OWN_OUT elements from OWN_OUT * group on.
struct Totals {
    float v[MATRICES][OWN_OUT] = {};

    // Add the chunks' sums of all groups, in order. A group without a chunk has left zeros.
    DEVICE void add_all(char *sums, int group, int thread) {
#pragma unroll
        for (int k = 0; k < WARPS_K; k++) {
#pragma unroll
            for (int i = 0; i < MATRICES * OWN_OUT; i++) {
                const int m = i / OWN_OUT, own = i % OWN_OUT;
                v[m][own] += *place(sums, k, m * MATRIX_OUT + OWN_OUT * group + own, thread);
            }
        }
    }

    // Add the sums of the only group.
    DEVICE void add(const float (&s)[N_OUT]) {
#pragma unroll
        for (int i = 0; i < N_OUT; i++) v[i / MATRIX_OUT][i % MATRIX_OUT] += s[i];
    }

    DEVICE void store(const Params &p, const Work &w, char *const *results, int group,
                      int warp) const {
        const float alpha = static_cast<float>(p.param[ALPHA].f);
        const float limit = static_cast<float>(p.param[LIMIT].f);
        const int g = lane_id() / 4, t = lane_id() % 4, n_rows = w.n_rows, first_row = w.first_row;
#pragma unroll
        for (int i = 0; i < OWN_OUT; i++) {
            const int e = OWN_OUT * group + i, n = e / 4 % NT, m = e / (4 * NT);
            float *to = reinterpret_cast<float *>(results[8 * n + 2 * t + e % 2]);
            const int row = 16 * (MT / MATRICES * warp + m) + 8 * (e / 2 % 2) + g;
            if (to == nullptr || row >= n_rows) continue;
            to[first_row + row] =
                MATRICES == 1 ? v[0][i] : glu(GATE, v[0][i], v[MATRICES - 1][i], alpha, limit);
        }
    }
};

// --- a block ---

// The steps of a group of warps, a few of them in its stages. A chunk takes two turns.
struct Ring {
    const Work &work;
    const Loader loader;
    char *stages;  // the group's part of the first one
    int group, n_steps, n_turns;

    DEVICE Ring(const Work &w, const u32 *columns, char *all_stages, int group, int thread)
        : work(w), loader{w, thread, columns}, stages(all_stages + group * GROUP_STAGE),
          group(group), n_steps(w.n_steps()),
          n_turns(2 * ((w.n_chunks() + WARPS_K - 1) / WARPS_K)) {}

    DEVICE int step(int turn) const { return 2 * (turn / 2 * WARPS_K + group) + turn % 2; }
    DEVICE char *stage(int turn) const { return stages + turn % STAGES * STAGE; }

    // Begin to copy a turn's step, if there is one.
    DEVICE void load(int turn) const {
        if (turn < n_turns && step(turn) < n_steps) {
            loader.load_rows(stage(turn), step(turn));
            loader.load_columns(stage(turn) + N_ROWS * ROW_SLOT, step(turn));
        }
        copy_async_commit();
    }

    // Add a turn's step to s. `addresses`: low bits of the addresses of the thread's rows.
    DEVICE void multiply(float (&s)[N_OUT], int turn, const u32 (&addresses)[2 * MT],
                         float4 *unpacked) const {
        const int now = step(turn), warp = loader.thread / WARP;
        if (now >= n_steps) return;
        const Step step = {stage(turn) + 16 * MT * warp * ROW_SLOT, stage(turn) + N_ROWS * ROW_SLOT,
                           turn & 1, work.n_blocks - now * STEP_BLOCKS, addresses,
                           static_cast<u32>(Rows::begin(now)), unpacked};
        if (Type::PACKS_SCALES) {
            unpack_scales<Type>(step);
            sync_warp();
        }
#pragma unroll 1
        for (int b = 0; b < STEP_BLOCKS; b += AT_ONCE) add_blocks(s, step, b);
    }
};

KERNEL(mul_mat_mma, THREADS, BLOCKS_PER_SM) {
    DYNAMIC_SHARED(char, stages);
    __shared__ u32 columns[N_COLS];
    __shared__ char *results[N_COLS];
    // of each warp
    __shared__ float4 unpacked[Type::PACKS_SCALES ? THREADS / WARP : 1][16 * MT * PAIRS];
    const int group = WARPS_K == 1 ? 0 : threadIdx.x / GROUP;
    const int thread = threadIdx.x - group * GROUP, warp = thread / WARP;
    __shared__ Work w;  // in registers, it would make totals spill
    Work found;
    int batch;
    if (!find_work(p, found, batch)) return;
    if (threadIdx.x == 0) w = found;
    for (int c = threadIdx.x; c < N_COLS; c += THREADS) {
        find_column(p, found, batch, c, columns[c], results[c]);
    }
    Type::prepare();
    sync_block();

    u32 addresses[2 * MT];
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int r = 16 * MT * warp + 8 * i + lane_id() / 4, m = matrix_of(8 * i);
        addresses[i] = static_cast<u32>(reinterpret_cast<u64>(w.matrix[m])) +
                       (ROWS_ARE_PIECES ? 0 : row_in(r) * w.row_bytes[m]);
    }
    const Ring ring(w, columns, stages, group, thread);
    char *const sums = stages + STAGES * STAGE;
    Totals total;
#pragma unroll 1
    for (int turn = 0; turn < STAGES - 1; turn++) ring.load(turn);

#pragma unroll 1
    for (int first = 0; first < ring.n_turns; first += 2) {
        float s[N_OUT];
#pragma unroll 1
        for (int turn = first; turn < first + 2; turn++) {
            copy_async_wait<STAGES - 2>();
            sync_block();
            ring.load(turn + STAGES - 1);
            if (turn == first) {
                // all groups wrote their sums before the barrier
                if (WARPS_K > 1 && turn > 0) total.add_all(sums, group, thread);
#pragma unroll
                for (int i = 0; i < N_OUT; i++) s[i] = 0.0f;
            }
            ring.multiply(s, turn, addresses, unpacked[Type::PACKS_SCALES ? warp_id() : 0]);
        }
        if (WARPS_K > 1) {
            leave_sums(s, sums, group, thread);
        } else {
            total.add(s);
        }
    }
    if (WARPS_K > 1) {
        sync_block();
        total.add_all(sums, group, thread);
    }
    total.store(p, w, results, group, warp);
}
