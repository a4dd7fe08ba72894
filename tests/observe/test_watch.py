"""Statistics of computed tensors: the right numbers, on any device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy_forward import forward
from test_profile_model import opened
from tiny_models import TINY, write_model

from lamella.alloc import Usage, alloc_tensors, tensor_set
from lamella.base.errors import RequestError
from lamella.base.settings import STRICT
from lamella.graph import GGMLType, Tensor, ops
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.devices import find_devices
from lamella.kernels.reference.arrays import from_f32
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement
from lamella.observe.watch import TensorWatch, tensor_line, tensor_values

MEMORY = CpuDevice(1).buffer_type
NUMBER = r"-?\d[\d.]*(?:e[+-]\d+)?"


def placed(type: GGMLType, values: np.ndarray, name: str = "t") -> Tensor:
    t = Tensor(type, values.shape[::-1], name=name)
    alloc_tensors([t], MEMORY, Usage.ANY)
    tensor_set(t, from_f32(type, values.astype(np.float32)))
    return t


def decode(context: Context, tokens: Sequence[int]) -> np.ndarray:
    seq = context.pool.new_sequence()
    context.append(seq, len(tokens))
    batch = Batch()
    batch.add(list(tokens), seq, 0, n_outputs=len(tokens))
    try:
        return context.decode(batch)
    finally:
        seq.free()


# --- one tensor ---


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0])
def test_values_of_any_type(type: GGMLType) -> None:
    values = np.linspace(-4, 3.5, 64).reshape(2, 32)
    found = tensor_values(placed(type, values))
    assert found.shape == (1, 1, 2, 32)
    assert np.abs(found[0, 0] - values).max() <= 0.02


def test_values_of_integers_and_strided_views() -> None:
    t = Tensor(GGMLType.I64, (3,))
    alloc_tensors([t], MEMORY, Usage.ANY)
    tensor_set(t, np.array([5, -1, 7], np.int64))
    assert tensor_values(t).tolist() == [[[[5, -1, 7]]]]
    x = placed(GGMLType.F32, np.arange(12).reshape(3, 4))
    part = ops.view(x, (2, 3), (4, 16), offset=4)
    part.buffer, part.offset = x.buffer, x.offset + 4
    assert tensor_values(part)[0, 0].tolist() == [[1, 2], [5, 6], [9, 10]]


def test_a_line() -> None:
    values = np.arange(20.0).reshape(2, 10) - 3
    values[1, 2] = np.nan
    line = tensor_line(placed(GGMLType.F32, values, "x"))
    mean = np.nanmean(values)
    assert line == (
        f"x = NONE [10, 2] F32: min -3, max 16, mean {mean:.6g}, 1 NaN; "
        "-3, -2, -1, 0, 1, 2, 3, 4, ..."
    )
    nothing = placed(GGMLType.F32, np.full((1, 2), np.nan), "n")
    assert tensor_line(nothing) == "n = NONE [2] F32: 2 NaN; nan, nan"
    endless = placed(GGMLType.F32, np.array([[1, np.inf]]), "i")
    assert "max inf, mean inf, 0 NaN; 1, inf" in tensor_line(endless)
    assert tensor_line(Tensor(GGMLType.F32, (0, 3), name="e")).endswith(": no values")


def test_a_bad_pattern() -> None:
    with pytest.raises(RequestError, match=r"'\(' is not a regular expression: missing \)"):
        TensorWatch("(", print)


def test_names_and_ops_match() -> None:
    watch = TensorWatch("^l_out-1|MUL_MAT", print)
    x = Tensor(GGMLType.F32, (4, 4))
    product, norm = ops.mul_mat(x, x).named("q"), ops.rms_norm(x, 1e-5)
    assert watch.matches(product)
    assert watch.matches(norm.named("l_out-12"))
    assert not watch.matches(norm.named("all_out-1"))
    experts = ops.mul_mat_id(Tensor(GGMLType.F32, (4, 4, 2)), x, Tensor(GGMLType.I32, (4, 1)))
    assert not watch.matches(experts.named("e"))  # only the whole name of an op matches


# --- a model ---


@pytest.mark.parametrize("n_layers", [0, 2, 3])
def test_the_numbers_equal_those_of_a_numpy_forward_pass(n_layers: int, tmp_path: Path) -> None:
    """On the CPU, split over the CPU and a simulated GPU, and on that GPU alone."""
    tiny, path = TINY["llama"], tmp_path / "model.gguf"
    weights = write_model(tiny, path)
    tokens = [3, 14, 15, 9, 26, 5, 35, 8]
    expected = forward(tiny, weights, tokens)
    cpu = CpuDevice(2)
    devices = tuple(find_devices(["sim"] if n_layers else [], cpu))
    model = load_model(
        path, Placement(cpu=cpu, devices=devices, params=PlacementParams(n_gpu_layers=n_layers))
    )
    output_lines: list[str] = []
    f32 = GGMLType.F32
    with STRICT.set(True), Context(model, ContextParams(n_ctx=64, type_k=f32, type_v=f32)) as c:
        c.set_eval_callback(
            TensorWatch("^result_output$|^inp_embd$|^cache_v-0$", output_lines.append)
        )
        logits = decode(c, tokens)
        c.set_eval_callback(None)
        n_bytes = c.n_bytes()
        assert decode(c, tokens).tobytes() == logits.tobytes()
        assert c.n_bytes() == n_bytes
    model.free()
    embedded, cache, output = output_lines
    rows = weights["token_embd.weight"][tokens]
    assert numbers(embedded) == pytest.approx(stats(rows), rel=1e-4)
    assert embedded.startswith("inp_embd = GET_ROWS [64, 8] F32: min ")
    assert cache.startswith("cache_v-0 = SET_ROWS [32, ")
    assert " 0 NaN" in cache  # of the written rows, not of the whole pool
    assert numbers(output) == pytest.approx(stats(expected), rel=1e-3)
    assert numbers(output) == pytest.approx(stats(logits), rel=1e-4)


def stats(values: np.ndarray) -> list[float]:
    """The numbers of a line: min, max, mean, NaN count, the first eight values."""
    first = values.reshape(-1)[:8]
    return [values.min(), values.max(), values.mean(), 0, *first.tolist()]


def numbers(line: str) -> list[float]:
    return [float(x) for x in re.findall(NUMBER, line.split(": ", 1)[1])]


def test_all_nodes_of_experts_are_reported(tmp_path: Path) -> None:
    with STRICT.set(True), opened(tmp_path, "qwen3moe", ("sim",), 1) as context:
        plain = decode(context, [1, 2, 3])
        output_lines: list[str] = []
        context.set_eval_callback(TensorWatch("", output_lines.append))
        n_bytes = context.n_bytes()
        for _ in range(3):
            assert decode(context, [1, 2, 3]).tobytes() == plain.tobytes()
        assert context.n_bytes() == n_bytes
        assert len(output_lines) % 3 == 0
    names = {line.split(" = ")[0] for line in output_lines}
    assert {"ffn_moe_topk-0", "ffn_moe_out-1", "fattn-0", "result_output"} < names


def test_suggested_names(tmp_path: Path) -> None:
    with opened(tmp_path) as context:
        watch = TensorWatch("nowhere", print)
        context.set_eval_callback(watch)
        decode(context, [1])
    assert watch.n_matches == 0
    assert watch.names().startswith("inp_tokens, inp_embd, attn_norm-0, ")
    assert "-1" not in watch.names()
    assert watch.names().endswith(", ...")
