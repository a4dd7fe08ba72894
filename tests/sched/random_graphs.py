"""Random graphs over a small model: the same seed gives the same graph on any machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGMLQuantizationType

from lamella.alloc import BufferType, Usage, alloc_tensors, tensor_get, tensor_set
from lamella.graph import GGMLType, Graph, Tensor, ops

N_EMBD, N_TOKENS, N_CELLS, PAGE, N_EXPERT = 32, 4, 32, 8, 4
HEAD_DIM, N_HEAD_KV = 8, 2


class Model:
    """Weights and caches, each in a buffer type chosen by `seed`. Its name determines its data."""

    def __init__(self, seed: int, homes: Sequence[BufferType]) -> None:
        self._rng = random.Random(seed)
        self._homes = homes
        matrix, square = GGMLType.Q4_0, (N_EMBD, N_EMBD)
        self.matrices = [self._new(f"W{i}", matrix, square) for i in range(6)]
        self.vectors = [self._new(f"v{i}", GGMLType.F32, (N_EMBD,)) for i in range(3)]
        self.gate = self._new("gate", GGMLType.F32, (N_EMBD, N_EXPERT))
        self.experts = self._new("experts", matrix, (N_EMBD, N_EMBD, N_EXPERT))
        self.to_kv = self._new("to_kv", GGMLType.F32, (N_EMBD, HEAD_DIM * N_HEAD_KV))
        self.embd = self._new("embd", GGMLType.Q8_0, (N_EMBD, 16))
        self.caches = [
            self._new(f"cache{i}", GGMLType.F16, (N_EMBD, N_CELLS), Usage.ANY) for i in range(3)
        ]
        self.pools = [
            self._new(f"pool{i}", GGMLType.F16, (HEAD_DIM * N_HEAD_KV, N_CELLS), Usage.ANY)
            for i in range(4)
        ]

    def _new(
        self, name: str, type: GGMLType, ne: Sequence[int], usage: Usage = Usage.WEIGHTS
    ) -> Tensor:
        tensor = Tensor(type, ne, name=name)
        alloc_tensors([tensor], self._homes[self._rng.randrange(60) % len(self._homes)], usage)
        values = np.random.default_rng(sum(name.encode())).standard_normal(ne[::-1], np.float32)
        packed = quants.quantize(values * 0.2, GGMLQuantizationType(type.value))
        tensor_set(tensor, packed)
        return tensor


class RandomGraph:
    """A graph of about `n` ops, its inputs and outputs."""

    def __init__(self, model: Model, seed: int, n: int = 24) -> None:
        self.model = model
        self.rng = random.Random(seed)
        self.caches = list(model.caches)
        self.pools = list(model.pools)
        self.tokens = Tensor(GGMLType.I32, (N_TOKENS,), name="tokens").set_input()
        self.cells = Tensor(GGMLType.I32, (N_TOKENS,), name="cells").set_input()
        self.pos = Tensor(GGMLType.I32, (N_TOKENS,), name="pos").set_input()
        self.seq = Tensor(GGMLType.I32, (N_TOKENS,), name="seq").set_input()
        self.begin = Tensor(GGMLType.I32, (N_TOKENS,), name="begin").set_input()
        self.end = Tensor(GGMLType.I32, (N_TOKENS,), name="end").set_input()
        self.pages = Tensor(GGMLType.I32, (N_CELLS // PAGE, 1), name="pages").set_input()
        self.x = [
            Tensor(GGMLType.F32, (N_EMBD, N_TOKENS), name=f"x{i}").set_input() for i in (0, 1)
        ]
        self.values = [*self.x, ops.get_rows(model.embd, self.tokens)]
        for i in range(n):
            self.values.append(self.rng.choice(_STEPS)(self, self._pick()).named(f"n{i}"))
        outputs = {self.values[-1], *self.rng.sample(self.values[3:], 3)}
        self.outputs = sorted(outputs, key=lambda t: t.name)
        self.graph = Graph(*(t.set_output() for t in self.outputs))

    def _pick(self) -> Tensor:
        return self.rng.choice(self.values[-6:])

    def write_inputs(self, step: int) -> None:
        """Write what a decode loop would: tokens `step`, `step + 1`, ... of one sequence."""
        rng = np.random.default_rng(step)
        pos = (np.arange(N_TOKENS) + step * N_TOKENS) % N_CELLS
        pages = np.arange(N_CELLS // PAGE)[::-1]
        values: dict[Tensor, npt.NDArray[np.generic]] = {
            self.tokens: rng.integers(0, 16, N_TOKENS),
            self.pos: pos,
            self.cells: pages[pos // PAGE] * PAGE + pos % PAGE,
            self.seq: np.zeros(N_TOKENS),
            self.begin: np.zeros(N_TOKENS),
            self.end: pos + 1,
            self.pages: pages,
            **{x: rng.standard_normal((N_TOKENS, N_EMBD)) for x in self.x},
        }
        for tensor, value in values.items():
            if tensor.buffer is not None:  # otherwise this graph does not read it
                dtype = np.float32 if tensor.type is GGMLType.F32 else np.int32
                tensor_set(tensor, value.astype(dtype))

    def read_outputs(self) -> list[bytes]:
        return [tensor_get(t).tobytes() for t in self.outputs]


Step = Callable[[RandomGraph, Tensor], Tensor]


def _cache(g: RandomGraph, a: Tensor) -> Tensor:
    if not g.caches:
        return ops.scale(a, 0.5)
    written = ops.set_rows(g.caches.pop(), a, g.cells)
    return ops.get_rows(written, g.cells)


def _attention(g: RandomGraph, a: Tensor) -> Tensor:
    if len(g.pools) < 2:
        return ops.gelu(a)
    kv = ops.mul_mat(g.model.to_kv, a)
    k = ops.set_rows(g.pools.pop(), kv, g.cells)
    v = ops.set_rows(g.pools.pop(), ops.silu(kv), g.cells)
    q = ops.reshape(a, (HEAD_DIM, N_EMBD // HEAD_DIM, N_TOKENS))
    tokens = (g.pages, g.seq, g.pos, g.begin, g.end)
    out = ops.flash_attn_ext(q, k, v, *tokens, page_size=PAGE, scale=0.3)
    return ops.reshape(out, (N_EMBD, N_TOKENS))


def _experts(g: RandomGraph, a: Tensor) -> Tensor:
    ids = ops.argsort_top_k(ops.mul_mat(g.model.gate, a), 2)
    both = ops.mul_mat_id(g.model.experts, ops.reshape(a, (N_EMBD, 1, N_TOKENS)), ids)
    halves = [
        ops.view(both, (N_EMBD, N_TOKENS), nb=(both.nb[0], both.nb[2]), offset=i * both.nb[1])
        for i in (0, 1)
    ]
    return ops.add(ops.cont(halves[0]), halves[1])


def _rope(g: RandomGraph, a: Tensor) -> Tensor:
    heads = ops.reshape(a, (HEAD_DIM, N_EMBD // HEAD_DIM, N_TOKENS))
    return ops.reshape(ops.rope(heads, g.pos, n_dims=HEAD_DIM), (N_EMBD, N_TOKENS))


def _transposed(g: RandomGraph, a: Tensor) -> Tensor:
    return ops.cont(ops.transpose(ops.cont(ops.transpose(a))))


def _overwrite(g: RandomGraph, a: Tensor) -> Tensor:
    return ops.cpy(a, ops.dup(g._pick()))


_STEPS: tuple[Step, ...] = (
    lambda g, a: ops.add(a, g._pick()),
    lambda g, a: ops.sub(a, g._pick()),
    lambda g, a: ops.mul(a, g.rng.choice(g.model.vectors)),
    lambda g, a: ops.mul_mat(g.rng.choice(g.model.matrices), a),
    lambda g, a: ops.mul_mat(g.rng.choice(g.model.matrices), a),
    lambda g, a: ops.rms_norm(a, 1e-5),
    lambda g, a: ops.rms_norm(ops.sqr(a), 1e-5),
    lambda g, a: ops.silu(a),
    lambda g, a: ops.swiglu(a, g._pick()),
    lambda g, a: ops.scale(ops.soft_max(a), 3.0),
    lambda g, a: ops.clamp(a, -2.0, 2.0),
    _cache,
    _attention,
    _experts,
    _rope,
    _transposed,
    _overwrite,
)
