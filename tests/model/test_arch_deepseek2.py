"""DeepSeek-V2 against a plain NumPy pass, its files, and the memory of latent rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from arch_run import Runner
from latent_models import N_ROT, RANK, TINY, Latent, forward, write_latent

from lamella.base.errors import ModelFileError, RequestError
from lamella.graph import GGMLType
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.kernels.sim import SimDevice
from lamella.model.arch import open_architecture
from lamella.model.arch.base import Temperature
from lamella.model.arch.deepseek2 import DeepSeek2
from lamella.model.arch.experts import Gating
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.layer_memory import Kind
from lamella.model.loader import load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement, moe_overrides
from lamella.sched import DeviceType

F32Array = npt.NDArray[np.float32]

TOKENS = [1, *(3 + 37 * i % 280 for i in range(39))]
FILES = {
    "lite": Latent(),
    "groups": Latent(n_group=4, n_group_used=2, scale=4.0),
    "yarn": Latent(yarn=(4.0, 64, 0.07)),
    "yarn without a multiplier": Latent(yarn=(4.0, 64, 0.0)),
    "temperature": Latent(temperature=0.2),
    "expanded": Latent(expanded=True),
    "expanded yarn": Latent(expanded=True, yarn=(4.0, 64, 0.07)),
}


def prompt(path: Path) -> F32Array:
    """Return the logits after each of TOKENS, with NumPy's kernels."""
    runner = Runner(load_model(path, Placement(cpu=SimDevice("CPU", DeviceType.CPU))))
    try:
        return runner.prompt(TOKENS, chunk=17)
    finally:
        runner.close()


def test_the_length_of_the_temperature(tmp_path: Path) -> None:
    """Files of Mistral 4 have a key for it. Its default is the original context."""
    for keys, length in (({}, 8), ({"attention.temperature_length": 16}, 16)):
        write_latent(tmp_path / "m.gguf", Latent(temperature=0.25), keys=keys)
        with open_gguf(tmp_path / "m.gguf") as file:
            arch = open_architecture(file)
        assert arch.temperature == Temperature(0.25, length)
        assert arch.notes(n_ctx=64) == []


@pytest.mark.parametrize("name", FILES)
def test_logits(name: str, tmp_path: Path) -> None:
    weights = write_latent(tmp_path / "m.gguf", FILES[name])
    plain = FILES[name]
    if plain.expanded:  # the same weights, in the other form
        weights = write_latent(tmp_path / "absorbed.gguf", Latent(yarn=plain.yarn))
    expected = forward(plain, weights, TOKENS)
    np.testing.assert_allclose(prompt(tmp_path / "m.gguf"), expected, atol=5e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"attention.head_count_kv": 4}, "attention.head_count_kv is 4: must be 1"),
        ({"attention.key_length": 80}, "attention.key_length is 80: must be 96"),
        ({"attention.value_length": 32}, "attention.value_length is 32: must be 64"),
        ({"rope.dimension_count": 64}, "rope.dimension_count is 64: must be 1 to 63"),
        ({"attention.kv_lora_rank": 0}, "attention.kv_lora_rank"),
        ({"attention.value_length_mla": 48}, "attn_v_b.weight"),
    ],
)
def test_sizes_that_do_not_fit(keys: dict[str, object], named: str, tmp_path: Path) -> None:
    write_latent(tmp_path / "m.gguf", keys=keys)
    with pytest.raises(ModelFileError) as error:
        load_model(tmp_path / "m.gguf", Placement(cpu=SimDevice("CPU", DeviceType.CPU))).free()
    assert named in str(error.value)


def test_a_bias_of_the_choice_means_a_sigmoid(tmp_path: Path) -> None:
    """Unless the file has the key of the function."""
    bias = {"blk.1.exp_probs_b.bias": np.zeros(TINY.n_expert, np.float32)}
    for extra, keys, gating in (
        ({}, {}, Gating.SOFTMAX),
        (bias, {}, Gating.SIGMOID),
        (bias, {"expert_gating_func": 1}, Gating.SOFTMAX),
    ):
        write_latent(tmp_path / "m.gguf", keys=keys, replace=extra)
        with open_gguf(tmp_path / "m.gguf") as file:
            arch = open_architecture(file)
        assert isinstance(arch, DeepSeek2)
        assert arch.experts.router.gating is gating


def test_a_leftover_matrix_is_ignored(tmp_path: Path) -> None:
    write_latent(tmp_path / "m.gguf")
    with open_gguf(tmp_path / "m.gguf") as file:
        arch = open_architecture(file)
    assert arch.ignores("blk.0.attn_kv_b.weight")
    assert not arch.ignores("blk.0.attn_kv_a.weight")


# --- memory ---


@contextmanager
def opened(
    path: Path,
    n_gpu_layers: int = 0,
    *,
    cpu_moe: bool = False,
    type_k: GGMLType = GGMLType.F16,
    type_v: GGMLType = GGMLType.F16,
) -> Iterator[Context]:
    """Open a context on the CPU and a simulated GPU, with pools of these types."""
    cpu = CpuDevice(repack=False)  # as a simulated GPU does not
    devices = tuple(find_devices(["sim"] if n_gpu_layers else [], cpu))
    params = PlacementParams(n_gpu_layers=n_gpu_layers)
    overrides = moe_overrides(TINY.n_layer, -1, cpu.buffer_type) if cpu_moe else ()
    model = load_model(
        path, Placement(cpu=cpu, devices=devices, params=params, overrides=overrides)
    )
    try:
        sizes = ContextParams(n_ctx=256, n_parallel=2, type_k=type_k, type_v=type_v)
        with Context(model, sizes) as context:
            yield context
    finally:
        model.free()


def logits(context: Context, *chunks: int) -> F32Array:
    """Return the logits after each of TOKENS, in chunks that end at these tokens. Another sequence
    is in all batches but the last."""
    seq, other = context.pool.new_sequence(), context.pool.new_sequence()
    context.append(seq, len(TOKENS))
    context.append(other, len(TOKENS))
    rows, begin = [], 0
    for end in (*chunks, len(TOKENS)):
        batch = Batch()
        if end < len(TOKENS):
            batch.add(TOKENS[: end - begin], other, begin)
        batch.add(TOKENS[begin:end], seq, begin, n_outputs=end - begin)
        rows.append(context.decode(batch).copy())
        begin = end
    seq.free()
    other.free()
    return np.concatenate(rows)


@pytest.mark.parametrize("type_k", [GGMLType.F16, GGMLType.Q8_0, GGMLType.F32])
def test_rows_are_all_that_is_stored(type_k: GGMLType, tmp_path: Path) -> None:
    write_latent(tmp_path / "m.gguf")
    with opened(tmp_path / "m.gguf", type_k=type_k) as context:
        (group,) = context.groups
        assert group.name == "latent"
        assert {m.kind for m in context.model.hp.memory} == {Kind.LATENT}
        assert group.cell_bytes == TINY.n_layer * type_k.row_size(RANK + N_ROT)
        assert all(layer.v is None for layer in group.layers.values())


@pytest.mark.parametrize("type_k", ["F16", "Q8_0", "F32"])
def test_bits_depend_neither_on_the_batch_nor_on_the_split(type_k: str, tmp_path: Path) -> None:
    write_latent(tmp_path / "m.gguf", type=GGMLType.Q8_0)
    kind = GGMLType[type_k]
    with opened(tmp_path / "m.gguf", type_k=kind) as context:
        alone = logits(context)
        assert np.array_equal(logits(context, 7, 31, 32, 33, 34), alone)
    for n_gpu_layers, cpu_moe in ((2, False), (4, True)):
        with opened(tmp_path / "m.gguf", n_gpu_layers, cpu_moe=cpu_moe, type_k=kind) as context:
            assert np.array_equal(logits(context, 16, 17), alone)


def test_types_of_pools_that_are_refused(tmp_path: Path) -> None:
    write_latent(tmp_path / "m.gguf")
    f16, f32, q8_0 = GGMLType.F16, GGMLType.F32, GGMLType.Q8_0
    for type_k, type_v, text in (
        (f16, q8_0, "type_v is Q8_0: values of this model are part of its keys"),
        (f32, q8_0, "must be F16 .* or that of type_k, F32"),
    ):
        with pytest.raises(RequestError, match=text):
            opened(tmp_path / "m.gguf", type_k=type_k, type_v=type_v).__enter__()


def test_pages_are_copied_and_restored(tmp_path: Path) -> None:
    write_latent(tmp_path / "m.gguf")
    with opened(tmp_path / "m.gguf") as context:
        seq = context.pool.new_sequence()
        context.append(seq, len(TOKENS))
        batch = Batch()
        batch.add(TOKENS, seq, 0, n_outputs=1)
        context.decode(batch)
        page = context.kv.read_page(0, 1)
        assert len(page) == 32 * 2 * (RANK + N_ROT) * TINY.n_layer
        assert page.any()
        context.kv.write_page(0, 3, page)
        assert np.array_equal(context.kv.read_page(0, 3), page)
        seq.free()
