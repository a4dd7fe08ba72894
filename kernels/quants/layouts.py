"""The layouts of blocks of quantized types in memory: a NumPy structure for each type.

The fields are those of ggml's block structs (ggml-common.h), but bytes that ggml reads as one
integer are one field here. All are little-endian; `dtype.newbyteorder()` swaps fields of several
bytes. `d` is always the scale of the whole block. Knows nothing of decoding.
Tested by tests/kernels/test_quants_layouts.py.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...graph.types import GGMLType

_F16: Final = "<f2"
_U16: Final = "<u2"
_U32: Final = "<u4"

# "halves": byte i holds value i in its low 4 bits and value i + n/2 in its high ones, where n is
# the number of values in the block, or in the run of it that is named
LAYOUTS: Final[dict[GGMLType, np.dtype[np.void]]] = {
    t: np.dtype(fields)
    for t, fields in (
        # y = d * (q - 8); halves
        (GGMLType.Q4_0, [("d", _F16), ("qs", "u1", 16)]),
        # y = d * q + m; halves
        (GGMLType.Q4_1, [("d", _F16), ("m", _F16), ("qs", "u1", 16)]),
        # y = d * (q - 16); halves, bit i of qh is the fifth bit of value i
        (GGMLType.Q5_0, [("d", _F16), ("qh", _U32), ("qs", "u1", 16)]),
        # y = d * q + m; bits as in Q5_0
        (GGMLType.Q5_1, [("d", _F16), ("m", _F16), ("qh", _U32), ("qs", "u1", 16)]),
        # y = d * q
        (GGMLType.Q8_0, [("d", _F16), ("qs", "i1", 32)]),
        # y = d * q; s = d * sum(q). Never in files: activations
        (GGMLType.Q8_1, [("d", "<f4"), ("s", "<f4"), ("qs", "i1", 32)]),
        # y = d * q; bsums: sums of 16 q each. Never in files: activations
        (GGMLType.Q8_K, [("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)]),
        # y = d if q else -d; bit i % 8 of byte i / 8 is value i
        (GGMLType.Q1_0, [("d", _F16), ("qs", "u1", 16)]),
        # y = d * scale * q - dmin * min for 16 values each; scales: scale in the low 4 bits, min
        # in the high ones. Each 32 bytes of qs hold 128 values: bits 0..1 of byte i value i,
        # bits 2..3 value 32 + i, and so on
        (
            GGMLType.Q2_K,
            [("scales", "u1", 16), ("qs", "u1", 64), ("d", _F16), ("dmin", _F16)],
        ),
        # y = d * (scale - 32) * (q - 4) for 16 values each; low 2 bits in qs as in Q2_K, the third
        # one of value 32 * j + i in bit j of hmask[i]. Scales have 6 bits: the low 4 of scale j
        # are half j / 8 of byte j % 8, the high 2 bits 2 * (j / 4) and up of byte 8 + j % 4
        (
            GGMLType.Q3_K,
            [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", _F16)],
        ),
        # y = d * scale * q - dmin * min for 32 values each; halves of 64 values. Scales and mins
        # have 6 bits: j < 4 in bytes j and 4 + j; for j >= 4 the low 4 bits of both share byte
        # 4 + j, the high 2 are the top bits of bytes j - 4 and j
        (
            GGMLType.Q4_K,
            [("d", _F16), ("dmin", _F16), ("scales", "u1", 12), ("qs", "u1", 128)],
        ),
        # as Q4_K; bit j of qh[i] is the fifth bit of value 32 * j + i
        (
            GGMLType.Q5_K,
            [
                ("d", _F16),
                ("dmin", _F16),
                ("scales", "u1", 12),
                ("qh", "u1", 32),
                ("qs", "u1", 128),
            ],
        ),
        # y = d * scale * (q - 32) for 16 values each; each 64 bytes of ql hold the low 4 bits of
        # 128 values in halves, each 32 bytes of qh their high 2 bits as in Q2_K
        (
            GGMLType.Q6_K,
            [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", _F16)],
        ),
        # y = d * (1/2 + scale) / 4 * grid * sign for 32 values each; grid: indices of 8 values.
        # signs: 7 bits for each 8 values (the eighth makes their number even), then 4 of scale
        (GGMLType.IQ2_XXS, [("d", _F16), ("qs", [("grid", "u1", 4), ("signs", _U32)], 8)]),
        # as IQ2_XXS; qs: 9 bits of grid index, 7 of signs, for 8 values each. Scales have 4 bits,
        # low ones first, for 16 values each
        (GGMLType.IQ2_XS, [("d", _F16), ("qs", _U16, 32), ("scales", "u1", 8)]),
        # as IQ2_XS; one sign bit for each value. qh: bits 8..9 of the grid indices, 4 to a byte
        (
            GGMLType.IQ2_S,
            [
                ("d", _F16),
                ("qs", "u1", 32),
                ("signs", "u1", 32),
                ("qh", "u1", 8),
                ("scales", "u1", 8),
            ],
        ),
        # y = d * (1/2 + scale) / 2 * grid * sign; qs: grid indices of 4 values, signs as in IQ2_XXS
        (GGMLType.IQ3_XXS, [("d", _F16), ("qs", "u1", 64), ("signs", _U32, 8)]),
        # y = d * (1 + 2 * scale) * grid * sign for 32 values each; qs: grid indices of 4 values,
        # qh: bit 8 of each; scales have 4 bits, low ones first
        (
            GGMLType.IQ3_S,
            [
                ("d", _F16),
                ("qs", "u1", 64),
                ("qh", "u1", 8),
                ("signs", "u1", 32),
                ("scales", "u1", 4),
            ],
        ),
        # y = d * (1 + 2 * scale) * (grid + delta) for 32 values each; qs: grid indices of 8 values.
        # qh: 4 times their bits 8..10, 3 bits of scale, and whether delta is -1/8, not 1/8
        (GGMLType.IQ1_S, [("d", _F16), ("qs", "u1", 32), ("qh", _U16, 8)]),
        # as IQ1_S, a scale for 16 values each, in bits 0..11 of scales, the top 4 bits of which
        # are d, a float16. qh: 4 bits for 8 values, 3 of grid index and the sign of delta
        (GGMLType.IQ1_M, [("qs", "u1", 32), ("qh", "u1", 16), ("scales", _U16, 4)]),
        # y = d * table[q]; halves
        (GGMLType.IQ4_NL, [("d", _F16), ("qs", "u1", 16)]),
        # y = d * (scale - 32) * table[q] for 32 values each, in halves of 32. Scales have 6 bits:
        # the low 4 in scales_l, low ones first, the high 2 in scales_h likewise
        (
            GGMLType.IQ4_XS,
            [("d", _F16), ("scales_h", _U16), ("scales_l", "u1", 4), ("qs", "u1", 128)],
        ),
        # y = d * (q - 1): 5 values to a byte in base 3, as the fraction byte / 256. qs[:32]: values
        # 32 * digit + i, qs[32:]: 160 + 16 * digit + i, qh (4 to a byte): 240 + 4 * digit + i
        (GGMLType.TQ1_0, [("qs", "u1", 48), ("qh", "u1", 4), ("d", _F16)]),
        # y = d * (q - 1); bits as in Q2_K
        (GGMLType.TQ2_0, [("qs", "u1", 64), ("d", _F16)]),
        # y = 2 ** (e - 128) * table[q], the values of E2M1 doubled; halves
        (GGMLType.MXFP4, [("e", "u1"), ("qs", "u1", 16)]),
        # y = d / 2 * table[q] as in MXFP4, d unsigned E4M3 for 16 values each, in halves of 16
        (GGMLType.NVFP4, [("d", "u1", 4), ("qs", "u1", 32)]),
    )
}

for _type in GGMLType:
    if _type.is_quantized:
        assert LAYOUTS[_type].itemsize == _type.type_size, f"{_type.name}: bytes of a block"
