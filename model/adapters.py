"""The LoRA adapters of a model (arXiv 2106.09685): their matrices, beside those of its weights.

    adapters = place_adapters([read_adapter(path)], arch, weights, device_of, cpu)
    scales = adapters.scales((0.5,))    # of a sequence whose only adapter has this scale

An adapter adds scale * alpha / rank * B (A x) to the product of a weight and x. The matrices of all
adapters of a weight are side by side, as float32. Knows no graphs and no requests.
Tested by tests/model/test_adapters.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..alloc.buffer import BufferType, buffer_of
from ..base.errors import ModelFileError, UnsupportedModelError
from ..graph import GGMLType, Op, Tensor, ops
from ..sched.backend import Device
from .adapter_file import N_SHOWN, AdapterFile, F32Array, Pair, matrix_of, read_matrix
from .arch import AdapterWeights, Part, WeightSpec
from .gguf import open_gguf

EMBEDDING: Final = "token_embd.weight"  # its pairs are [rank, n_vocab] and [rank, n_embd]
N_TOKENS_TRIED: Final = 512  # tokens of the ops passed to `supports_op`


class AdapterPart(NamedTuple):
    """The pairs of an adapter, by its number, that have the same factor."""

    adapter: int
    factor: float


class Piece(NamedTuple):
    """A pair that changes a weight, and the first of the rows of B for the weight."""

    part: int
    adapter: int
    pair: Pair
    begin: int


class Adapters:
    """The adapters of a loaded model.

    Attributes:
        all: their files, by number.
        parts: an adapter's scale is a scale of each of its parts.
        pieces: the pairs that change each weight, by its name, in the order of the adapters.
        weights: their matrices, side by side.
        tensors: all tensors of `weights`, by their memory.
    """

    def __init__(self, files: Sequence[AdapterFile] = ()) -> None:
        self.all = tuple(files)
        self.parts: list[AdapterPart] = []
        self.pieces: dict[str, list[Piece]] = {}
        self.weights: dict[str, AdapterWeights] = {}
        self.tensors: dict[BufferType, list[Tensor]] = {}

    @property
    def initial(self) -> tuple[float, ...]:
        """The scale of each adapter for sequences that set none."""
        return tuple(file.scale for file in self.all)

    @property
    def initial_scales(self) -> F32Array | None:
        """Their scales for `Batch.add`."""
        return self.scales(self.initial)

    def scales(self, of_adapters: Sequence[float]) -> F32Array | None:
        """Return the scale of each part, from that of each adapter; None if all are 0."""
        if not any(of_adapters):
            return None
        with np.errstate(over="ignore"):  # absurd scales may become infinite
            return np.array([of_adapters[p.adapter] * p.factor for p in self.parts], np.float32)

    def fill(self) -> None:
        """Copy the matrices from the files.

        Raises:
            ModelFileError: a file cannot be read, or has a value that is not finite.
        """
        with ExitStack() as stack:
            files = [stack.enter_context(open_gguf(adapter.path)) for adapter in self.all]
            for name, pieces in self.pieces.items():
                to, is_embedding = self.weights[name], name == EMBEDDING
                a = [read_matrix(files[p.adapter], p.pair.a) for p in pieces]
                b = [read_matrix(files[p.adapter], p.pair.b) for p in pieces]
                n_out = to.b.ne[0]
                cut = [m[p.begin : p.begin + n_out].T for m, p in zip(b, pieces, strict=True)]
                _write(to.a, np.concatenate(a, axis=1 if is_embedding else 0))
                _write(to.b, np.concatenate(cut))
                parts = np.repeat([p.part for p in pieces], [p.pair.rank for p in pieces])
                one_hot = np.eye(len(self.parts), dtype=np.float32)
                _write(to.parts, one_hot[parts] if is_embedding else parts.astype(np.int32))


def _write(tensor: Tensor, values: npt.NDArray[np.float32] | npt.NDArray[np.int32]) -> None:
    assert values.shape == tensor.ne[1::-1] or values.shape == tensor.ne[:1], f"{tensor!r}"
    raw = np.ascontiguousarray(values).view(np.uint8).ravel()
    buffer_of(tensor).set_tensor(tensor, raw)


def place_adapters(
    files: Sequence[AdapterFile],
    arch: str,
    weights: Iterable[tuple[WeightSpec, tuple[Part, ...]]],
    device_of: Mapping[str, Device],
    cpu: Device,
) -> Adapters:
    """Find the weights that adapters change, and make their tensors. These are not allocated yet.

    Args:
        files: the adapters, by number.
        arch: the architecture of the model.
        weights: its weights, each with its parts of the model's file.
        device_of: the device of each weight, by name. Its adapters go there, if the device can
            compute their products.
        cpu: computes the others.

    Raises:
        ModelFileError: an adapter is for another architecture, or for a tensor of another shape.
        UnsupportedModelError: an adapter is for a tensor that the model does not have, or that no
            adapter can change.
    """
    adapters = Adapters(files)
    for file in files:
        if file.arch != arch:
            raise ModelFileError(
                f"{file.path}: the adapter is for architecture {file.arch!r}, the model is {arch!r}"
            )
    used: list[set[str]] = [set() for _ in files]
    specs: dict[str, WeightSpec] = {}
    for spec, source in weights:
        pieces = list(_find(adapters, spec, source, used)) if spec.adapts else []
        if pieces:
            adapters.pieces[spec.name], specs[spec.name] = pieces, spec
    for file, names in zip(files, used, strict=True):
        unknown = [name for name in file.pairs if name not in names]
        if unknown:
            more = f" and {len(unknown) - N_SHOWN} more" if len(unknown) > N_SHOWN else ""
            raise UnsupportedModelError(
                f"{file.path}: the model has no such matrices, or no adapter can change them: "
                f"{', '.join(unknown[:N_SHOWN])}{more}"
            )
    for name, spec in specs.items():
        _make(adapters, spec, device_of[name], cpu)
    return adapters


def _find(
    adapters: Adapters, spec: WeightSpec, source: tuple[Part, ...], used: Sequence[set[str]]
) -> Iterator[Piece]:
    """Yield the pairs that change a weight. Note their names in `used`.

    A pair has the name of the weight's tensor, whose rows may be those of several weights, or of
    the weight.
    """
    parts = list(source) if len(source) == 1 else []
    if source[0].tensor != spec.name:
        # a tied output has the embedding's rows, but not its adapters
        parts = [part for part in (*parts, Part(spec.name)) if part.tensor != EMBEDDING]
    for i, file in enumerate(adapters.all):
        for part in parts:
            pair = file.pairs.get(part.tensor)
            if pair is not None:
                _check_shapes(file, spec, part, pair)
                used[i].add(part.tensor)
                own = AdapterPart(i, file.factor(pair))
                if own not in adapters.parts:
                    adapters.parts.append(own)
                yield Piece(adapters.parts.index(own), i, pair, part.begin)


def _check_shapes(file: AdapterFile, spec: WeightSpec, part: Part, pair: Pair) -> None:
    n_in, n_out = spec.ne
    n_out = part.n_rows or n_out
    r = pair.rank
    wanted = ((r, n_out), (r, n_in)) if spec.name == EMBEDDING else ((n_in, r), (r, n_out))
    for info, ne in zip(pair, wanted, strict=True):
        if matrix_of(info) != ne:
            raise ModelFileError(
                f"{file.path}: tensor {info.name} has {list(info.ne)}, must have {list(ne)}: the "
                f"model's {part.tensor} has {[n_in, n_out]}"
            )


def _make(adapters: Adapters, spec: WeightSpec, device: Device, cpu: Device) -> None:
    """Make the tensors of a weight's adapters."""
    n_in, n_out = spec.ne
    f32, rank = GGMLType.F32, sum(piece.pair.rank for piece in adapters.pieces[spec.name])
    if spec.name == EMBEDDING:
        a, b = Tensor(f32, (rank, n_out)), Tensor(f32, (n_in, rank))
        parts = Tensor(f32, (len(adapters.parts), rank))
    else:
        a, b = Tensor(f32, (n_in, rank)), Tensor(f32, (n_out, rank))
        parts = Tensor(GGMLType.I32, (rank,))
    made = AdapterWeights(a, b, parts)
    for tensor, suffix in zip(made, ("lora_a", "lora_b", "lora_parts"), strict=True):
        tensor.named(f"{spec.name}.{suffix}")
    home = device if _can_compute(device, made, spec.op) else cpu
    adapters.weights[spec.name] = made
    adapters.tensors.setdefault(home.buffer_type, []).extend(made)


def _can_compute(device: Device, made: AdapterWeights, op: Op) -> bool:
    """True if a device can compute the products of adapters, with matrices in its own memory."""
    n, (a, b, parts) = N_TOKENS_TRIED, made
    y, z = Tensor(GGMLType.F32, (b.ne[0], n)), Tensor(GGMLType.F32, (b.ne[1], n))
    if op is Op.GET_ROWS:
        first = ops.get_rows(a, Tensor(GGMLType.I32, (n,)))
    else:
        x, scales = Tensor(GGMLType.F32, (a.ne[0], n)), Tensor(GGMLType.F32, (1, n))
        first = ops.lora_a(a, x, scales, parts)
    for tensor in made:  # support can depend on the memory
        tensor.buffer = device.buffer_type.alloc_buffer(0)
    try:
        return device.supports_op(first) and device.supports_op(ops.lora_b(y, b, z))
    finally:
        for tensor in made:
            tensor.buffer = None
