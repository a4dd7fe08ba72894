// Shared memory of the tensor-core kernel (mul_mat_mma.cu): steps of 128 values, of weight rows in
// GGUF's layout and of columns in form q8 (blocks.cuh).
//
// A row's bytes are copied in aligned pieces of 16, as copies must be, whatever the row's own
// alignment: a step begins `shift` bytes into its first piece. `Staging` knows for each type which
// bytes a step needs, and gives blocks.cuh a view of them. A slot of a row or column is an odd
// number of pieces, so 8 slots are in different banks.
#pragma once
#include "weights.cuh"

constexpr int STEP = CHUNK / 2;  // values
constexpr int STEP_BLOCKS = STEP / BLOCK;
constexpr int PIECE = 16;  // bytes

DEVICE constexpr int pieces(int bytes) { return (bytes + PIECE - 1) / PIECE; }

DEVICE int misalignment(u64 address) { return static_cast<int>(address % PIECE); }

// --- weights ---

// Blocks of 32 or 64 values: the blocks of a step are contiguous.
template <class Type> struct SmallStaging {
    static constexpr bool ENDS_ANYWHERE = true;  // K may end within a step
    static constexpr int GGUF_BYTES = Type::BYTES / (CHUNK / Type::VALUES);
    static constexpr int ALIGNMENT = GGUF_BYTES % 4 == 0 ? 4 : GGUF_BYTES % 2 == 0 ? 2 : 1;
    static constexpr bool ALIGNED = ALIGNMENT == 4;
    static constexpr int STEP_BYTES = Type::BYTES / 2;
    static constexpr int PIECES = pieces(STEP_BYTES + PIECE - ALIGNMENT);

    // Where a step's bytes begin in a row.
    static DEVICE i64 begin(int step) { return static_cast<i64>(step) * STEP_BYTES; }
    // Where piece i begins, from an aligned `begin` on; and how many bytes are needed from there
    // on, later pieces included.
    static DEVICE int offset(int i, int) { return PIECE * i; }
    static DEVICE int needed(int i, int n_blocks) {
        return (n_blocks < STEP_BLOCKS ? n_blocks : STEP_BLOCKS) * Type::BLOCK_BYTES - PIECE * i;
    }

    typedef Bytes<ALIGNED> View;
    static DEVICE View view(const char *slot, int shift, int) { return View{slot + shift}; }
    // The index of the step's block i for blocks.cuh.
    static DEVICE int block(int, int i) { return i; }
};

// Blocks of 256 values: both steps copy the whole block.
template <class Type> struct WholeStaging {
    static constexpr bool ENDS_ANYWHERE = false;
    static constexpr bool ALIGNED = Type::BYTES % 4 == 0;
    static constexpr int PIECES = pieces(Type::BYTES + PIECE - (ALIGNED ? 4 : 2));

    static DEVICE i64 begin(int step) { return static_cast<i64>(step / 2) * Type::BYTES; }
    static DEVICE int offset(int i, int) { return PIECE * i; }
    static DEVICE int needed(int i, int) { return Type::BYTES - PIECE * i; }

    typedef Bytes<ALIGNED> View;
    static DEVICE View view(const char *slot, int shift, int) { return View{slot + shift}; }
    static DEVICE int block(int half, int i) { return STEP_BLOCKS * half + i; }
};

// Blocks of 256 values: HEAD bytes for the whole block, then 32 bytes for each 64 values. Blocks and
// HEAD are multiples of 4 bytes.
template <class Type, int HEAD> struct HeadedStaging {
    static constexpr bool ENDS_ANYWHERE = false;
    // the rest is copied from FIRST on: a multiple of a piece, so its alignment is the block's
    static constexpr int FIRST = HEAD / PIECE * PIECE, REST_BYTES = STEP / 2 + HEAD - FIRST;
    static constexpr int HEAD_PIECES = pieces(HEAD + PIECE - 4);
    static constexpr int PIECES = HEAD_PIECES + pieces(REST_BYTES + PIECE - 4);

    static DEVICE i64 begin(int step) { return static_cast<i64>(step / 2) * Type::BYTES; }
    static DEVICE int offset(int i, int half) {
        return i < HEAD_PIECES ? PIECE * i : FIRST + STEP / 2 * half + PIECE * (i - HEAD_PIECES);
    }
    static DEVICE int needed(int i, int) {
        return i < HEAD_PIECES ? HEAD - PIECE * i : REST_BYTES - PIECE * (i - HEAD_PIECES);
    }

    struct View {
        const char *slot;
        int head, rest;  // where the block would begin

        DEVICE const char *at(int offset) const {
            return slot + ((offset < HEAD ? head : rest) + offset);
        }
        DEVICE u32 word(int offset) const { return *reinterpret_cast<const u32 *>(at(offset)); }
        DEVICE float f16(int offset) const {
            return f16_to_f32(*reinterpret_cast<const u16 *>(at(offset)));
        }
    };
    static DEVICE View view(const char *slot, int shift, int half) {
        return View{slot, shift, shift + PIECE * HEAD_PIECES - FIRST - STEP / 2 * half};
    }
    static DEVICE int block(int half, int i) { return STEP_BLOCKS * half + i; }
};

template <class Type, bool IS_LARGE = Type::VALUES == CHUNK>
struct Staging : SmallStaging<Type> {};
template <class Type> struct Staging<Type, true> : WholeStaging<Type> {};
template <> struct Staging<IQ4_XS> : HeadedStaging<IQ4_XS, 8> {};
template <> struct Staging<Q4_K> : HeadedStaging<Q4_K, 16> {};
template <> struct Staging<Q5_K> : HeadedStaging<Q5_K, 48> {};

// Each half has 64 bytes of low bits and 32 bytes of high bits; both share the rest.
template <> struct Staging<Q6_K> {
    static constexpr bool ENDS_ANYWHERE = false;
    static constexpr int QL = 5, QH = 3, REST = 2;  // pieces
    static constexpr int REST_BYTES = Q6_K::BYTES - Q6_K::SCALES;
    static constexpr int PIECES = QL + QH + REST;
    static_assert(REST == pieces(REST_BYTES + PIECE - 2), "room for what is not aligned");

    static DEVICE i64 begin(int step) { return static_cast<i64>(step / 2) * Q6_K::BYTES; }
    static DEVICE int offset(int i, int half) {
        if (i < QL) return STEP / 2 * half + PIECE * i;
        if (i < QL + QH) return Q6_K::QH + STEP / 4 * half + PIECE * (i - QL);
        return Q6_K::SCALES + PIECE * (i - QL - QH);
    }
    static DEVICE int needed(int i, int) {
        if (i < QL) return STEP / 2 - PIECE * i;
        if (i < QL + QH) return STEP / 4 - PIECE * (i - QL);
        return REST_BYTES - PIECE * (i - QL - QH);
    }

    struct View {
        const char *slot;
        int ql, qh, rest;  // where the block would begin

        DEVICE u32 half(int offset) const {
            const int begin = offset < Q6_K::QH ? ql : offset < Q6_K::SCALES ? qh : rest;
            return *reinterpret_cast<const u16 *>(slot + (begin + offset));
        }
        DEVICE u32 word(int offset) const { return half(offset) | half(offset + 2) << 16; }
        DEVICE float f16(int offset) const { return f16_to_f32(static_cast<u16>(half(offset))); }
    };
    static DEVICE View view(const char *slot, int shift, int half) {
        const int ql = shift - STEP / 2 * half;
        const int qh = shift + PIECE * QL - Q6_K::QH - STEP / 4 * half;
        return View{slot, ql, qh, shift + PIECE * (QL + QH) - Q6_K::SCALES};
    }
    static DEVICE int block(int half, int i) { return STEP_BLOCKS * half + i; }
};

// --- columns ---

// A step of a column: values, scales and, if the type has minima, sums.
constexpr int COLUMN_SCALES = STEP, COLUMN_SUMS = STEP + PIECE;
template <class Type> constexpr int COLUMN_SLOT = STEP + (Type::HAS_MIN ? 3 : 1) * PIECE;
