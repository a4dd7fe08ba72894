"""Control vectors: the logits of an edited model, equal bits in every batch, and broken files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from arch_goldens import GOLDENS
from arch_pins import FILE, write_pin
from control_vectors import directions, write_control
from tiny_models import N_VOCAB, TINY, write_model

from lamella.base.errors import ModelFileError, RequestError
from lamella.graph import GGMLType
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.arch import open_architecture
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.control_file import ControlFiles, read_control_vector
from lamella.model.gguf import open_gguf
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement

F32Array = npt.NDArray[np.float32]

PINS: dict[str, Any] = json.loads(FILE.read_text())
OWN_GRAPHS = ("talkie", "gemma3n", "tiny-gemma4")  # that `Decoder` does not build
RNG = np.random.default_rng(5)
TEXT: list[int] = RNG.integers(0, N_VOCAB, 40).tolist()
LLAMA = replace(TINY["llama"], n_layer=4)
EXACT = ContextParams(n_ctx=128, type_k=GGMLType.F32, type_v=GGMLType.F32)


def shape_of(path: Path) -> tuple[int, int]:
    with open_gguf(path, header_only=True) as file:
        hp = open_architecture(file).hp
    return hp.n_layer, hp.n_embd


def load(path: Path, control: ControlFiles, device: str = "cpu") -> LoadedModel:
    placement = Placement(cpu=CpuDevice(2))
    if device == "sim":
        params = PlacementParams(n_gpu_layers=2, op_offload=False)
        placement = Placement(cpu=CpuDevice(2), devices=(SimDevice("sim0"),), params=params)
    return load_model(path, placement, control=control)


def logits(model: LoadedModel, tokens: Sequence[int] = TEXT, chunk: int = 64) -> F32Array:
    with Context(model, EXACT) as context:
        seq, found = context.pool.new_sequence(), []
        for begin in range(0, len(tokens), chunk):
            part, batch = list(tokens[begin : begin + chunk]), Batch()
            context.append(seq, len(part))
            batch.add(part, seq, begin, len(part))
            found.append(context.decode(batch))
        seq.free()
        return np.concatenate(found)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("control") / "m.gguf"
    write_model(LLAMA, path)
    return path


@pytest.fixture(scope="module")
def shape(path: Path) -> tuple[int, int]:
    return shape_of(path)


@pytest.fixture(scope="module")
def files(path: Path, shape: tuple[int, int]) -> ControlFiles:
    """Two control vectors, of all layers and of one."""
    one = write_control(path.with_name("one.gguf"), directions(*shape))
    last = directions(*shape, seed=1)
    name = f"direction.{shape[0] - 1}"
    two = write_control(path.with_name("two.gguf"), {name: last[name]})
    return ControlFiles((read_control_vector(one, 0.5), read_control_vector(two, -2.0)))


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_control_vectors_are_as_biases_of_the_last_matrices(
    path: Path, shape: tuple[int, int], files: ControlFiles, device: str, is_cut: bool
) -> None:
    """`ffn_down` is the last product of a layer, before its sum."""
    n_layer, n_embd = shape
    layers = (1, n_layer - 2) if is_cut else None
    biases = {f"blk.{il}.ffn_down.bias": np.zeros(n_embd, np.float32) for il in range(n_layer)}
    one, two = directions(n_layer, n_embd), directions(n_layer, n_embd, seed=1)
    for il in range(1, n_layer - is_cut):
        biases[f"blk.{il}.ffn_down.bias"] += np.float32(0.5) * one[f"direction.{il}"]
    if not is_cut:
        biases[f"blk.{n_layer - 1}.ffn_down.bias"] -= 2 * two[f"direction.{n_layer - 1}"]
    edited = path.with_name("edited.gguf")
    write_model(LLAMA, edited, replace=biases)
    with load(edited, ControlFiles()) as model:
        wanted = logits(model)
    with load(path, files._replace(layers=layers), device) as model:
        found = logits(model)
    with load(path, ControlFiles()) as model:
        plain = logits(model)
    assert np.abs(found - wanted).max() < 2e-4
    assert np.abs(found - plain).max() > 0.1


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_bits_do_not_depend_on_chunks(path: Path, files: ControlFiles, device: str) -> None:
    with load(path, files, device) as model:
        homes = {t.buffer.buft.name for t in model.control.directions.values() if t.buffer}
        assert len(homes) == (2 if device == "sim" else 1), "a direction is with its layer"
        assert np.array_equal(logits(model, chunk=7), logits(model))


@pytest.mark.parametrize("name", OWN_GRAPHS)
def test_architectures_with_graphs_of_their_own(name: str, tmp_path: Path) -> None:
    """Each layer that has a direction is steered."""
    if name not in PINS and name not in GOLDENS:
        pytest.skip("its golden model is not there")
    path = GOLDENS.get(name, tmp_path / "m.gguf")
    if name in PINS:
        write_pin(PINS[name], path)
    n_layer, n_embd = shape_of(path)
    with load(path, ControlFiles()) as model:
        plain = logits(model, [5, 7, 9])
    tensors = directions(n_layer, n_embd)
    for tensor in (f"direction.{il}" for il in (1, n_layer - 1)):
        file = write_control(tmp_path / "c.gguf", {tensor: tensors[tensor]})
        with load(path, ControlFiles((read_control_vector(file),))) as model:
            assert np.abs(logits(model, [5, 7, 9]) - plain).max() > 1e-3, tensor


VECTOR = np.ones(4, np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": VECTOR}, "tensor x: a control vector has tensors direction.1"),
        ({"direction.0": VECTOR}, "tensor direction.0: a control vector has tensors direction.1"),
        ({}, "a control vector must have tensors direction.N"),
        ({"direction.1": VECTOR.astype(np.float16)}, r"direction.1 is F16 \[4\]: must be a vector"),
        ({"direction.1": np.ones((2, 4), np.float32)}, r"is F32 \[4, 2\]: must be a vector of F32"),
    ],
)
def test_files_that_are_no_control_vectors(
    tmp_path: Path, tensors: Mapping[str, npt.NDArray[np.generic]], message: str
) -> None:
    with pytest.raises(ModelFileError, match=rf"c\.gguf: .*{message}"):
        read_control_vector(write_control(tmp_path / "c.gguf", tensors))


def test_directions_that_do_not_fit_the_model(path: Path, shape: tuple[int, int]) -> None:
    n_layer, n_embd = shape

    def refused(tensors: Mapping[str, F32Array], message: str) -> None:
        file = write_control(path.with_name("wrong.gguf"), tensors)
        with pytest.raises(ModelFileError, match=message):
            load(path, ControlFiles((read_control_vector(file),)))

    long = np.ones(n_embd + 1, np.float32)
    refused({"direction.1": long}, rf"direction.1 has \[{n_embd + 1}\], must have \[{n_embd}\]")
    late = {f"direction.{n_layer}": long[1:]}
    refused(late, rf"direction.{n_layer}: the model has layers 1 to {n_layer - 1}")
    long[3] = np.nan
    refused({"direction.1": long[:-1]}, "direction.1: a value is not finite")


@pytest.mark.parametrize("layers", [(0, 1), (2, 1), (1, 99), (-1, -1)])
def test_ranges_that_are_not_in_the_model(
    path: Path, files: ControlFiles, layers: tuple[int, int]
) -> None:
    with pytest.raises(RequestError, match=f"layer_range is {layers[0]} to {layers[1]}: must be"):
        load(path, files._replace(layers=layers))


def test_a_range_without_a_direction(path: Path, files: ControlFiles) -> None:
    with pytest.raises(RequestError, match="range is 1 to 1: no control vector has a direction"):
        load(path, ControlFiles(files.files[1:], (1, 1)))


def test_a_control_vector_is_no_model(files: ControlFiles) -> None:
    with pytest.raises(ModelFileError, match=r"open its model, with --control-vector .*one\.gguf"):
        load(files.files[0].path, ControlFiles())
