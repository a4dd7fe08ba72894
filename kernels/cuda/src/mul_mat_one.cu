// Products of quantized weights with one column. They take most of the time of decoding one
// sequence, and are limited by memory bandwidth. Compiled with -DTYPE=Q4_0, ... (blocks.cuh) and
// -DT=F32, ..., the type of the column.
//
// Each block quantizes the column for itself (quantize.cuh), while its first weights are on their
// way: this takes less time than another kernel would.
// A thread computes the sum of a chunk of a row by itself. A warp computes a tile of a few rows, or
// of as many of two matrices: it copies batches of up to 32 chunks, which are consecutive in memory,
// into its stages in shared memory, whole pieces of 16 bytes whatever the alignment. Each thread
// reads its chunk of the batch into registers. When all sums of a tile are in shared memory, one
// thread for each row adds them in order (blocks.cuh). A warp takes many tiles; while it computes a
// batch, the next ones are on their way.
#include "activations.cuh"
#include "quantize.cuh"
#include "weights.cuh"

typedef TYPE Type;

constexpr int MAX_THREADS = 256;
constexpr int BLOCKS_PER_SM = 2;  // limits the registers
constexpr int PIECE = 16;
constexpr int STAGE = (WARP * Type::BYTES + PIECE - 1) / PIECE * PIECE + PIECE;
constexpr int SCALES = CHUNK, SUMS = CHUNK + 4 * CHUNK_BLOCKS;  // within a chunk of the column
constexpr int COLUMN_SLOT = CHUNK + 8 * CHUNK_BLOCKS + PIECE;   // 8 slots are in different banks

// Parameters of every kernel here; 0 to 2 are those of the GLU. Batches: of a tile and one matrix.
constexpr int TILE_ROWS = 3, N_STAGES = 4, N_CHUNKS = 5, N_BATCHES = 6, N_TILES = 7;

DEVICE int number(const Params &p, int i) { return static_cast<int>(p.param[i].i); }

// a / b of numbers that are not negative.
DEVICE int divide(int a, int b) {
    return static_cast<int>(static_cast<u32>(a) / static_cast<u32>(b));
}

DEVICE int misalignment(const char *at) {
    return static_cast<int>(reinterpret_cast<u64>(at) % PIECE);
}

// One matrix, or two, times a column. Rows have no gaps between them.
struct Work {
    const char *from[2];
    const char *column;  // of T, not quantized
    float *to;
    int n_blocks;  // that share the tiles
};

// The shape of the work. FAST: a row's chunks are whole, and aligned as Held wants.
template <bool GATED, bool FAST> struct Shape {
    const int n_rows, tile_rows, n_blocks, n_chunks, n_batches, n_tiles;

    DEVICE explicit Shape(const Params &p)
        : n_rows(static_cast<int>(p.t[1].ne[1])),
          tile_rows(number(p, TILE_ROWS)),
          n_blocks(static_cast<int>(p.t[1].ne[0]) / BLOCK),
          n_chunks(number(p, N_CHUNKS)),
          n_batches(number(p, N_BATCHES)),
          n_tiles(number(p, N_TILES)) {}

    // Where chunk `i` of a tile begins, counted along its rows; at the end, where the last one ends.
    DEVICE int offset(int i) const {
        if (FAST) return i * Type::BYTES;
        const int row = divide(i, n_chunks), chunk = i - row * n_chunks;
        const int whole = n_blocks / CHUNK_BLOCKS, rest = n_blocks % CHUNK_BLOCKS;
        const int row_bytes = whole * Type::BYTES + rest * (Type::BYTES / CHUNK_BLOCKS);
        return row * row_bytes + chunk * Type::BYTES;
    }
};

// The batches of a warp, one after the other: those of its first tile, of its second, ...
template <bool GATED, bool FAST> struct Batches {
    const Shape<GATED, FAST> &shape;
    const Work &work;
    int tile, number;  // the tile, and the number of the batch in it, over both matrices
    const char *at;    // its first byte
    int first;         // its first chunk in the tile
    int n;             // its chunks; 0 or less: none

    DEVICE Batches(const Shape<GATED, FAST> &shape, const Work &work)
        : shape(shape),
          work(work),
          tile(warp_id() * work.n_blocks + static_cast<int>(blockIdx.x)),
          number(0) {
        look();
    }

    DEVICE bool is_second() const { return GATED && number >= shape.n_batches; }

    DEVICE void look() {
        const bool second = is_second();
        const int left = shape.n_rows - tile * shape.tile_rows;
        first = WARP * (second ? number - shape.n_batches : number);
        n = (left < shape.tile_rows ? left : shape.tile_rows) * shape.n_chunks - first;
        n = n < WARP ? n : WARP;
        const i64 tile_bytes = shape.offset(shape.tile_rows * shape.n_chunks);
        at = (second ? work.from[1] : work.from[0]) + tile * tile_bytes + shape.offset(first);
    }

    DEVICE void advance() {
        if (++number == (GATED ? 2 : 1) * shape.n_batches) {
            number = 0;
            tile += work.n_blocks * static_cast<int>(blockDim.x) / WARP;
        }
        look();
    }

    DEVICE int n_bytes() const { return shape.offset(first + n) - shape.offset(first); }

    // Begin to copy the aligned pieces that contain the batch. All lanes call it together.
    DEVICE void load(char *stage) const {
        if (n <= 0) return;
        const int shift = misalignment(at), end = n_bytes() + shift;
        const char *const from = at - shift;
#pragma unroll 4
        for (int i = PIECE * lane_id(); i < end; i += PIECE * WARP) copy_async(stage + i, from + i);
    }
};

// Store the chunk of the column that a warp has loaded in its slot.
DEVICE void store_chunk(char *slot, const Quantized &q) {
    reinterpret_cast<uint2 *>(slot)[lane_id()] = q.values;
    if (q.has_scale()) {
        reinterpret_cast<float *>(slot + SCALES)[lane_id() / QUAD] = q.scale;
        reinterpret_cast<int *>(slot + SUMS)[lane_id() / QUAD] = q.sum;
    }
}

// Quantize the column into slots, one for each chunk. Warps take turns, with two chunks at a time.
// The values of the next two are on their way meanwhile.
DEVICE void quantize_column(char *slots, const char *column, i64 k, int n_chunks) {
    const int n_warps = static_cast<int>(blockDim.x) / WARP, own = N_VALUES * lane_id();
    float next[2][N_VALUES], x[2][N_VALUES];
    const auto load = [&](int chunk) {
        load_values(next[0], column, chunk * CHUNK + own, k);
        load_values(next[1], column, (chunk + n_warps) * CHUNK + own, k);
    };
    load(warp_id());
    for (int chunk = warp_id(); chunk < n_chunks; chunk += 2 * n_warps) {
#pragma unroll
        for (int i = 0; i < N_VALUES; i++) x[0][i] = next[0][i], x[1][i] = next[1][i];
        load(chunk + 2 * n_warps);
        const Quantized first(x[0]), second(x[1]);
        store_chunk(slots + chunk * COLUMN_SLOT, first);
        if (chunk + n_warps < n_chunks) store_chunk(slots + (chunk + n_warps) * COLUMN_SLOT, second);
    }
}

// --- a chunk's sum ---

// A chunk in registers, for the functions of types: offsets must be known at compile time.
struct Held {
    static constexpr int N = (Type::BYTES + 3) / 4;
    static constexpr int WIDE = Type::BYTES % 16 == 0 ? 16 : Type::BYTES % 8 == 0 ? 8 : 4;
    // chunks of other sizes begin at multiples of 2 bytes, so they end before the last word
    static constexpr bool ENDS_BEFORE = Type::BYTES % 4 != 0;
    u32 words[N + 1];

    // ALIGNED: `at` is a multiple of WIDE. Otherwise up to 4 bytes after the chunk are read, all of
    // them in its stage.
    template <bool ALIGNED> DEVICE void load(const char *at) {
        words[N] = 0;
        if constexpr (ALIGNED && WIDE == 16) {
#pragma unroll
            for (int i = 0; i < N / 4; i++) {
                const uint4 v = reinterpret_cast<const uint4 *>(at)[i];
                words[4 * i] = v.x, words[4 * i + 1] = v.y;
                words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
            }
        } else if constexpr (ALIGNED && WIDE == 8) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const uint2 v = reinterpret_cast<const uint2 *>(at)[i];
                words[2 * i] = v.x, words[2 * i + 1] = v.y;
            }
        } else {
            const u32 shift = static_cast<u32>(reinterpret_cast<u64>(at) & 3);
            const u32 *const from = reinterpret_cast<const u32 *>(at - shift);
            const u32 bytes = 0x3210 + 0x1111 * shift;
            u32 low = from[0];
#pragma unroll
            for (int i = 0; i < N; i++) {
                const u32 high = i + 1 == N && ENDS_BEFORE ? 0 : from[i + 1];
                words[i] = byte_perm(low, high, bytes);
                low = high;
            }
        }
    }

    DEVICE u32 word(int offset) const {
        const int i = offset / 4, bytes = offset % 4;
        if (bytes == 0) return words[i];
        return byte_perm(words[i], words[i + 1], 0x3210 + 0x1111 * bytes);
    }
    DEVICE u32 any_word(int offset) const { return word(offset); }
    DEVICE u32 byte(int offset) const { return words[offset / 4] >> (8 * (offset % 4)) & 0xff; }
    DEVICE u32 half(int offset) const { return words[offset / 4] >> (8 * (offset % 4)) & 0xffff; }
    DEVICE float f16(int offset) const { return f16_to_f32(static_cast<u16>(half(offset))); }
};

// The products of both halves of block b with 32 values of the column, in integers.
template <class W>
DEVICE void multiply_block(const Held &held, int b, const u32 (&column)[8], int &low, int &high) {
    low = 0, high = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        u32 w_low, w_high;
        if constexpr (W::HAS_SUB_SCALES) {
            shifted_words<W>(held, b, t, w_low, w_high);
        } else {
            W::words(held, b, t, w_low, w_high);
        }
        low = dot_s8(w_low, column[t], low);
        high = dot_s8(w_high, column[4 + t], high);
    }
}

// The sum of the first 16 values of a column, times their minimum, and of the others, times theirs.
template <class W>
DEVICE int weighted_sum(const Held &held, int b, const u32 (&column)[8], int sum) {
    int first_min, second_min, first = 0;
    W::sub_mins(held, b, first_min, second_min);
#pragma unroll
    for (int t = 0; t < 4; t++) first = dot_s8(in_all_bytes(1), column[t], first);
    return first_min * first + second_min * (sum - first);
}

// The sum of the first `n_blocks` blocks of a chunk, of all if WHOLE, with the column's chunk in a
// slot.
template <class W, bool WHOLE>
DEVICE float chunk_sum(const Held &held, const char *slot, int n_blocks) {
    float s = 0.0f;
#pragma unroll
    for (int b = 0; b < CHUNK_BLOCKS; b++) {
        if (!WHOLE && b >= n_blocks) break;
        const uint4 first = reinterpret_cast<const uint4 *>(slot)[2 * b];
        const uint4 second = reinterpret_cast<const uint4 *>(slot)[2 * b + 1];
        const u32 column[8] = {first.x,  first.y,  first.z,  first.w,
                               second.x, second.y, second.z, second.w};
        const float a_d = reinterpret_cast<const float *>(slot + SCALES)[b];
        int a_sum = reinterpret_cast<const int *>(slot + SUMS)[b];
        int low, high, isum;
        multiply_block<W>(held, b, column, low, high);
        if constexpr (W::IN_16) {
            isum = low;
            a_sum = high;
        } else if constexpr (W::HAS_SUB_SCALES) {
            int low_scale, high_scale;
            W::sub_scales(held, b, low_scale, high_scale);
            isum = (low_scale * low + high_scale * high) >> W::SHIFT;
        } else {
            isum = low + high - W::OFFSET * a_sum;
            if constexpr (W::HAS_SUB_MINS) a_sum = weighted_sum<W>(held, b, column, a_sum);
        }
        float w_scale, w_min;
        W::scales(held, b, w_scale, w_min);
        s = accumulate<W>(s, static_cast<float>(isum), a_d, static_cast<float>(a_sum), w_scale,
                          w_min);
    }
    return s;
}

// --- a warp ---

DEVICE float total(const float *sums, int n) {
    float v = 0.0f;
#pragma unroll 4
    for (int i = 0; i < n; i++) v += sums[i];
    return v;
}

// Add the sums of a tile and store the results of its rows.
template <bool GATED, class S>
DEVICE void finish_tile(const Params &p, const S &shape, int tile, const float *sums, float *to) {
    const int first = tile * shape.tile_rows, n = shape.n_chunks;
    for (int r = lane_id(); r < shape.tile_rows && first + r < shape.n_rows; r += WARP) {
        const float v = total(sums + r * n, n);
        to[first + r] = GATED ? glu(p, 0, v, total(sums + (shape.tile_rows + r) * n, n)) : v;
    }
}

template <bool GATED, bool FAST> DEVICE void multiply(const Params &p, const Work &work) {
    DYNAMIC_SHARED(char, slots);
    const Shape<GATED, FAST> shape(p);
    const int n_stages = number(p, N_STAGES), n_warps = blockDim.x / WARP;
    const int n_sums = shape.tile_rows * shape.n_chunks;  // of a tile and one matrix
    char *const all_stages = slots + shape.n_chunks * COLUMN_SLOT;
    char *const stages = all_stages + warp_id() * n_stages * STAGE;
    float *const sums = reinterpret_cast<float *>(all_stages + n_warps * n_stages * STAGE) +
                        warp_id() * (GATED ? 2 : 1) * n_sums;
    Batches<GATED, FAST> now(shape, work), next(shape, work);
    for (int s = 0; s < n_stages; s++) {
        next.load(stages + s * STAGE);
        copy_async_commit();
        next.advance();
    }
    Type::prepare();
    quantize_column(slots, work.column, p.t[2].ne[0], shape.n_chunks);
    int stage = 0, first = -1, chunk = 0, offset = 0;
    bool has_column = false;
    while (now.tile < shape.n_tiles || !has_column) {
        if (n_stages == 2) {
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        if (has_column) {
            sync_warp();
        } else {
            sync_block();
        }
        has_column = true;
        char *const own = stages + stage * STAGE;
        if (now.first != first) {  // this lane has another chunk of a row
            first = now.first;
            const int i = first + lane_id();
            chunk = i - divide(i, shape.n_chunks) * shape.n_chunks;
            offset = shape.offset(i) - shape.offset(first);
        }
        if (lane_id() < now.n) {
            Held held;
            held.load<FAST>(own + misalignment(now.at) + offset);
            const int left = shape.n_blocks - chunk * CHUNK_BLOCKS;
            sums[(now.is_second() ? n_sums : 0) + first + lane_id()] =
                chunk_sum<Type, FAST>(held, slots + chunk * COLUMN_SLOT, left);
        }
        sync_warp();
        next.load(own);
        copy_async_commit();
        next.advance();
        const int tile = now.tile;
        now.advance();
        if (tile != now.tile) {
            finish_tile<GATED>(p, shape, tile, sums, work.to);
            sync_warp();
        }
        if (++stage == n_stages) stage = 0;
    }
}

template <bool GATED>
DEVICE void compute(const Params &p, i64 matrix, const char *column, char *to) {
    Work work;
    work.from[0] = p.t[1].data + matrix;
    work.from[1] = GATED ? p.t[3].data + matrix : work.from[0];
    work.column = column;
    work.to = reinterpret_cast<float *>(to);
    work.n_blocks = static_cast<int>(p.n_blocks);
    const u64 starts = reinterpret_cast<u64>(work.from[0]) | reinterpret_cast<u64>(work.from[1]);
    const bool is_aligned = Held::WIDE == 4 || starts % PIECE == 0;
    if (is_aligned && p.t[1].ne[0] % CHUNK == 0) {
        multiply<GATED, true>(p, work);
    } else {
        multiply<GATED, false>(p, work);
    }
}

// Grid: (warps' tiles, batch).
template <bool GATED> DEVICE void mul_mat(const Params &p) {
    const BatchMatrix matrix(p, blockIdx.y);
    char *const to = at(p.t[0], 0, 0, matrix.i2, matrix.i3);
    compute<GATED>(p, matrix.weights, row_of(p.t[2], blockIdx.y), to);
}

// Grid: (warps' tiles, slot, token). The last tensor has the expert of each slot of a token.
template <bool GATED> DEVICE void mul_mat_id(const Params &p) {
    const Tensor &a = p.t[1], &x = p.t[2], &ids = p.t[GATED ? 4 : 3];
    const u32 slot = blockIdx.y, token = blockIdx.z, n_x = static_cast<u32>(x.ne[1]);
    const i64 id = *reinterpret_cast<const int *>(at(ids, slot * ids.nb[0], token, 0, 0));
    if (id < 0 || id >= a.ne[2]) {
        if (threadIdx.x == 0) fail(p, id, a.ne[2]);
        return;
    }
    const i64 column = static_cast<i64>(token) * n_x + (n_x == 1 ? 0 : slot % n_x);
    char *const to = at(p.t[0], 0, slot, token, 0);
    compute<GATED>(p, id * a.nb[2], row_of(x, column), to);
}

MERGING_KERNEL(mul_mat_one, MAX_THREADS, BLOCKS_PER_SM) { mul_mat<false>(p); }
KERNEL(gate_up_one, MAX_THREADS, BLOCKS_PER_SM) { mul_mat<true>(p); }
KERNEL(mul_mat_id_one, MAX_THREADS, BLOCKS_PER_SM) { mul_mat_id<false>(p); }
KERNEL(gate_up_id_one, MAX_THREADS, BLOCKS_PER_SM) { mul_mat_id<true>(p); }
