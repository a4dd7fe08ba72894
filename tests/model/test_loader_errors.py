"""Errors of the loader: invalid files and too little memory. All memory is freed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import TINY, write_model

from lamella.base.errors import (
    CancelledError,
    ModelFileError,
    OutOfMemoryError,
    RequestError,
    UnsupportedModelError,
)
from lamella.graph import GGMLType, Op
from lamella.kernels.sim import SimDevice
from lamella.model.loader import load_model
from lamella.model.params import PlacementParams
from lamella.model.placement import Placement
from lamella.sched import DeviceType


def load(path: Path, *, check_tensors: bool = False) -> None:
    params = Placement(cpu=SimDevice("CPU", DeviceType.CPU))
    load_model(path, params, check_tensors=check_tensors).free()


def zeros(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.zeros(shape, np.float32)


def test_unsupported_architecture(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf", metadata={"general.architecture": "rwkv6"})
    with pytest.raises(UnsupportedModelError, match=r"m\.gguf.*'rwkv6'.*llama, .*qwen2, .*qwen3"):
        load(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("model", "tensor"),
    [
        ("llama", "token_embd.weight"),
        ("llama", "output_norm.weight"),
        ("llama", "blk.1.attn_q.weight"),
        ("qwen3", "blk.1.attn_k_norm.weight"),
        ("mixtral", "blk.0.ffn_gate_inp.weight"),
        ("qwen3moe", "blk.1.ffn_down_exps.weight"),
    ],
)
def test_missing_tensors_are_named(model: str, tensor: str, tmp_path: Path) -> None:
    write_model(TINY[model], tmp_path / "m.gguf", without=[tensor], vocab=False)
    with pytest.raises(ModelFileError, match=rf"m\.gguf: tensors are missing: {tensor}$"):
        load(tmp_path / "m.gguf")


def test_many_missing_tensors(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf", metadata={"llama.block_count": 4})
    with pytest.raises(ModelFileError, match=r"missing: blk\.2\.attn_norm.*blk\.3\.ffn_down\S+$"):
        load(tmp_path / "m.gguf")
    write_model(TINY["llama"], tmp_path / "m.gguf", metadata={"llama.block_count": 20})
    with pytest.raises(ModelFileError, match=r"missing: blk\.2\.attn_norm.* and 112 more$"):
        load(tmp_path / "m.gguf")


def test_all_mis_shaped_tensors_are_named(tmp_path: Path) -> None:
    wrong = {f"blk.{il}.attn_q.weight": zeros(64, 32) for il in range(2)}
    write_model(TINY["llama"], tmp_path / "m.gguf", replace=wrong)
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q.*, blk\.1\.attn_q\S+ has"):
        load(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("model", "tensor", "shape", "found", "wanted"),
    [
        ("llama", "blk.0.attn_q.weight", (64, 32), "[32, 64]", "[64, 64]"),
        ("llama", "blk.1.attn_k.weight", (64, 64), "[64, 64]", "[64, 32]"),
        ("llama", "output_norm.weight", (63,), "[63]", "[64]"),
        ("llama", "token_embd.weight", (289, 64), "[64, 289]", "[64, 288]"),
        ("qwen2", "blk.0.attn_k.bias", (2, 16), "[16, 2]", "[32]"),
        ("mixtral", "blk.0.ffn_up_exps.weight", (3, 96, 64), "[64, 96, 3]", "[64, 96, 4]"),
        ("llama-3.1", "rope_freqs.weight", (16,), "[16]", "[8]"),
    ],
)
def test_mis_shaped_tensors_are_named(
    model: str, tensor: str, shape: tuple[int, ...], found: str, wanted: str, tmp_path: Path
) -> None:
    write_model(TINY[model], tmp_path / "m.gguf", replace={tensor: zeros(*shape)})
    with pytest.raises(ModelFileError) as info:
        load(tmp_path / "m.gguf")
    message = f"m.gguf: tensors have wrong shapes: {tensor} has {found}, must have {wanted}"
    assert str(info.value).endswith(message)


@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (1, 64, 1)])
def test_dimensions_of_one_do_not_matter(shape: tuple[int, ...], tmp_path: Path) -> None:
    vector = np.ones(shape, np.float32)
    write_model(TINY["llama"], tmp_path / "m.gguf", replace={"output_norm.weight": vector})
    load(tmp_path / "m.gguf")


def test_unknown_tensors_are_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_sinks.weight": zeros(4), "blk.1.attn_q_norm.weight": zeros(16)}
    write_model(TINY["llama"], tmp_path / "m.gguf", replace=extra)
    with pytest.raises(
        UnsupportedModelError,
        match=r"'llama' does not have these tensors, .* blk\.0\.attn_sinks\.weight, blk\.1\.attn_q",
    ):
        load(tmp_path / "m.gguf")


def test_layers_that_predict_further_tokens_are_ignored(tmp_path: Path) -> None:
    keys: dict[str, object] = {"llama.block_count": 3, "llama.nextn_predict_layers": 1}
    extra = {"blk.2.attn_norm.weight": zeros(64), "blk.2.nextn.eh_proj.weight": zeros(64, 128)}
    write_model(TINY["llama"], tmp_path / "m.gguf", replace=extra, metadata=keys)
    load(tmp_path / "m.gguf")
    extra["blk.3.attn_norm.weight"] = zeros(64)
    write_model(TINY["llama"], tmp_path / "m.gguf", replace=extra, metadata=keys)
    with pytest.raises(UnsupportedModelError, match=r"ignore them: blk\.3\.attn_norm\.weight$"):
        load(tmp_path / "m.gguf")


SINGLE = {f"blk.0.ffn_up.{e}.weight": zeros(96, 64) for e in range(4)}


def test_a_missing_single_expert(tmp_path: Path) -> None:
    some = dict(list(SINGLE.items())[:3])
    without = ["blk.0.ffn_up_exps.weight"]
    write_model(TINY["mixtral"], tmp_path / "m.gguf", replace=some, without=without)
    with pytest.raises(ModelFileError, match=r"missing: blk\.0\.ffn_up_exps\.weight"):
        load(tmp_path / "m.gguf")


def test_experts_of_one_layer_have_one_type(tmp_path: Path) -> None:
    write_model(
        TINY["mixtral"],
        tmp_path / "m.gguf",
        replace=SINGLE,
        types={"blk.0.ffn_up.2.weight": GGMLType.F16},
        without=["blk.0.ffn_up_exps.weight"],
    )
    with pytest.raises(UnsupportedModelError, match=r"ffn_up\.2\.weight has type F16, .* F32"):
        load(tmp_path / "m.gguf")


def test_a_vector_of_an_unsupported_type(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf", types={"output_norm.weight": GGMLType.Q8_1})
    with pytest.raises(UnsupportedModelError, match=r"output_norm\.weight of type Q8_1"):
        load(tmp_path / "m.gguf")


def test_a_type_that_the_cpu_cannot_run(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf", GGMLType.Q4_0)
    cpu = SimDevice("CPU", DeviceType.CPU, ops=set(Op) - {Op.MUL_MAT})
    with pytest.raises(UnsupportedModelError, match=r"blk\.0\.attn_q\.weight.*Q4_0|output.*Q4_0"):
        load_model(tmp_path / "m.gguf", Placement(cpu=cpu))


# --- memory is freed ---


@pytest.mark.parametrize("small", ["SIM0", "SIM1", "CPU"])
def test_out_of_memory_frees_what_was_allocated(small: str, tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")

    def memory(name: str) -> int:
        return 20_000 if name == small else 2**40

    devices = [SimDevice(name, memory=memory(name)) for name in ("SIM0", "SIM1")]
    cpu = SimDevice("CPU", DeviceType.CPU, memory=memory("CPU"))
    params = Placement(
        cpu=cpu, devices=tuple(devices), params=PlacementParams(tensor_split=(1.0, 1.0))
    )
    with pytest.raises(OutOfMemoryError, match=small) as error:
        load_model(tmp_path / "m.gguf", params)
    assert error.tb, "memory is freed while the error still exists"
    assert [d.buffer_type.used for d in (*devices, cpu)] == [0, 0, 0]


def test_a_load_that_is_cancelled_frees_its_memory(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    cpu = SimDevice("CPU", DeviceType.CPU)

    def cancel(done: int, total: int) -> None:
        if done > total // 2:
            assert cpu.buffer_type.used >= total
            raise CancelledError("enough")

    with pytest.raises(CancelledError) as error:
        load_model(tmp_path / "m.gguf", Placement(cpu=cpu), cancel)
    assert error.tb
    assert cpu.buffer_type.used == 0


def test_an_override_to_memory_without_a_capable_device(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    gpu = SimDevice("SIM0", ops=set(Op) - {Op.GET_ROWS})
    params = Placement(
        cpu=SimDevice("CPU", DeviceType.CPU),
        devices=(gpu,),
        overrides=(("token_embd", gpu.buffer_type),),
    )
    with pytest.raises(RequestError, match=r"token_embd\.weight.*SIM0.*GET_ROWS"):
        load_model(tmp_path / "m.gguf", params)


@pytest.mark.parametrize("type", [GGMLType.F32, GGMLType.Q8_0])
def test_weights_that_are_not_finite(type: GGMLType, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    weights = write_model(TINY["llama"], path, type, seed=1)
    load(path, check_tensors=True)
    bad = weights["blk.1.ffn_up.weight"].copy()
    bad[0, :2] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        write_model(TINY["llama"], path, type, seed=1, replace={"blk.1.ffn_up.weight": bad})
    load(path)
    with pytest.raises(ModelFileError, match=r"tensor blk\.1\.ffn_up\.weight: \d+ values are not"):
        load(path, check_tensors=True)
