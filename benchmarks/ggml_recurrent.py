"""ggml's own recurrences (llama.cpp's libraries) on the sources of our nodes, for bench_recurrent.

ggml's ops take each sequence's tokens as a dimension of their own, a state for each, and append the
new states to the result. A convolution's source begins with the columns of the state.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench_attention import Ggml, Run, _InitParams
from reference_run import Array, data

from lamella.graph import GGMLType, Op, Tensor

F32, I32 = GGMLType.F32, GGMLType.I32


class GgmlRecurrent(Ggml):
    """The functions of ggml that compute recurrences."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        pointer = ctypes.c_void_p
        for name, n_tensors in (("ssm_conv", 2), ("ssm_scan", 7), ("gated_delta_net", 6)):
            function = getattr(self.base, f"ggml_{name}")
            function.restype = pointer
            function.argtypes = [pointer] * (1 + n_tensors)
            if name != "ssm_conv":
                function.argtypes = [*function.argtypes, ctypes.c_int64]  # states to keep

    def run_nodes(self, nodes: Sequence[Tensor], n_seqs: int, n_threads: int) -> tuple[Run, Run]:
        """The computation of nodes of `n_seqs` equal sequences, and a function that frees it."""
        base = self.base
        n_bytes = (1 << 26) + 4 * sum(t.nbytes for node in nodes for t in (node, *node.src))
        context = base.ggml_init(_InitParams(n_bytes, None, False))
        graph = base.ggml_new_graph(context)
        for node in nodes:
            base.ggml_build_forward_expand(graph, self._node(context, node, n_seqs))
        works = _InitParams(1 << 26, None, False)

        def compute() -> None:
            scratch = base.ggml_init(works)
            self.cpu.ggml_graph_compute_with_ctx(scratch, graph, n_threads)
            base.ggml_free(scratch)

        return compute, lambda: base.ggml_free(context)

    def _node(self, context: int, node: Tensor, n_seqs: int) -> int:
        def tensor(values: Array, type: GGMLType = F32) -> int:
            values = np.ascontiguousarray(values)
            ne = (*values.shape[::-1], 1, 1, 1, 1)[:4]
            t = int(self.base.ggml_new_tensor_4d(context, type.value, *ne))
            ctypes.memmove(self.base.ggml_get_data(t), values.ctypes.data, values.nbytes)
            return t

        def heads(i: int) -> Array:
            """Source i, with a matrix for each token: (n_seqs, tokens, heads, elements)."""
            return data(node.src[i]).reshape(n_seqs, -1, *data(node.src[i]).shape[2:])

        def rows(i: int) -> Array:
            """Source i, with a row for each token: (n_seqs, tokens, elements)."""
            return data(node.src[i]).reshape(n_seqs, -1, node.src[i].ne[0])

        if node.op is Op.SSM_CONV:
            taps, x = data(node.src[1])[0, 0], rows(0)
            begin = np.zeros((n_seqs, taps.shape[1] - 1, x.shape[2]), x.dtype)
            columns = np.concatenate([begin, x], axis=1).transpose(0, 2, 1)
            return int(self.base.ggml_ssm_conv(context, tensor(columns), tensor(taps)))
        if node.op is Op.SSM_SCAN:
            head_dim, n_head, d_state = *node.ne[:2], node.src[3].ne[0]
            states = tensor(np.zeros((n_seqs, n_head, head_dim, d_state), np.float32))
            head_x, b, c = (tensor(heads(i)) for i in (0, 3, 4))
            dt, a = tensor(rows(1)), tensor(data(node.src[2])[0, 0])
            ids = tensor(np.arange(n_seqs, dtype=np.int32), I32)
            return int(self.base.ggml_ssm_scan(context, states, head_x, dt, a, b, c, ids, 1))
        d, n_v = node.ne[:2]
        states = tensor(np.zeros((n_seqs, n_v, d, d), np.float32))
        q, k, v = (tensor(heads(i)) for i in range(3))
        g, beta = (tensor(rows(i)[..., None]) for i in (3, 4))
        return int(self.base.ggml_gated_delta_net(context, q, k, v, g, beta, states, 1))
