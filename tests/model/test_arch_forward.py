"""Every architecture against a plain NumPy forward pass, and against other implementations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from arch_goldens import divergence, log_softmax
from arch_run import Runner
from numpy_forward import F64Array, forward
from tiny_models import TINY, write_model

from lamella.graph import GGMLType, Graph, Op
from lamella.kernels.sim import SimDevice
from lamella.model.loader import load_model
from lamella.model.params import PlacementParams
from lamella.model.placement import Placement
from lamella.sched import DeviceType

DATA = Path(os.environ.get("LAMELLA_TEST_DATA", Path(__file__).parents[3] / "shared"))

Run = Callable[..., Runner]


@pytest.fixture
def run() -> Iterator[Run]:
    """Load models on the CPU and a simulated GPU, and close them afterwards."""
    open_: list[Runner] = []

    def start(path: Path, n_gpu_layers: int = 0, n_ctx: int = 64, n_seqs: int = 1) -> Runner:
        devices = (SimDevice("SIM0"),) if n_gpu_layers else ()
        cpu = SimDevice("CPU", DeviceType.CPU)
        params = Placement(
            cpu=cpu, devices=devices, params=PlacementParams(n_gpu_layers=n_gpu_layers)
        )
        open_.append(Runner(load_model(path, params), n_ctx, n_seqs))
        return open_[-1]

    yield start
    for runner in open_:
        runner.close()


def tokens_of(n: int, seed: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 288, n)]


def assert_logits(actual: npt.NDArray[np.float32], expected: F64Array) -> None:
    np.testing.assert_allclose(actual, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", TINY)
def test_a_sequence(name: str, tmp_path: Path, run: Run) -> None:
    weights = write_model(TINY[name], tmp_path / "m.gguf")
    tokens = tokens_of(20, seed=1)
    assert_logits(run(tmp_path / "m.gguf").prompt(tokens), forward(TINY[name], weights, tokens))


@pytest.mark.parametrize("name", ["llama", "qwen2-yarn", "qwen3moe"])
def test_several_sequences_in_one_batch_and_step_by_step(
    name: str, tmp_path: Path, run: Run
) -> None:
    weights = write_model(TINY[name], tmp_path / "m.gguf")
    runner = run(tmp_path / "m.gguf", n_ctx=24, n_seqs=3)
    texts = [tokens_of(n, seed=n) for n in (11, 3, 18)]
    expected = [forward(TINY[name], weights, text) for text in texts]
    everything = [(t, s, p) for s, text in enumerate(texts) for p, t in enumerate(text)]
    prompts = [entry for entry in everything if entry[2] < len(texts[entry[1]]) - 2]
    order = np.random.default_rng(3).permutation(len(prompts))
    mixed = [prompts[i] for i in order]
    wanted = [5, 0, 17]
    logits = runner.step(mixed, wanted)
    for row, i in enumerate(wanted):
        _, s, p = mixed[i]
        assert_logits(logits[row], expected[s][p])
    for back in (2, 1):  # then one token of each sequence, at different positions
        batch = [(text[-back], s, len(text) - back) for s, text in enumerate(texts)]
        logits = runner.step(batch, [0, 1, 2])
        for s in range(3):
            assert_logits(logits[s], expected[s][-back])


def test_chunks_do_not_change_bits(tmp_path: Path, run: Run) -> None:
    write_model(TINY["qwen3"], tmp_path / "m.gguf")
    tokens = tokens_of(20, seed=2)
    whole = run(tmp_path / "m.gguf").prompt(tokens)
    assert np.array_equal(run(tmp_path / "m.gguf").prompt(tokens, chunk=7), whole)


@pytest.mark.parametrize("name", ["llama-3.1", "mixtral", "qwen2"])
@pytest.mark.parametrize("n_gpu_layers", [1, 2, 3])
def test_layers_on_a_gpu_do_not_change_bits(
    name: str, n_gpu_layers: int, tmp_path: Path, run: Run
) -> None:
    write_model(TINY[name], tmp_path / "m.gguf")
    tokens = tokens_of(9, seed=4)
    on_cpu = run(tmp_path / "m.gguf").prompt(tokens)
    split = run(tmp_path / "m.gguf", n_gpu_layers)
    assert np.array_equal(split.prompt(tokens), on_cpu)
    assert [d.name for d in split.model.devices] == ["SIM0", "CPU"]


def test_quantized_weights_and_experts_in_separate_tensors(tmp_path: Path, run: Run) -> None:
    weights = write_model(TINY["mixtral"], tmp_path / "m.gguf", GGMLType.Q8_0, split_experts=True)
    tokens = tokens_of(6, seed=5)
    actual = run(tmp_path / "m.gguf").prompt(tokens)
    assert_logits(actual, forward(TINY["mixtral"], weights, tokens))


@pytest.mark.parametrize("name", ["llama", "qwen3moe"])
def test_factors_of_matrices(name: str, tmp_path: Path, run: Run) -> None:
    """Files with NVFP4 matrices have factors of their products."""
    n = max(TINY[name].n_expert, 1)
    factors = np.linspace(0.5, 2, n, dtype=np.float32)
    kinds = ["attn_q", "attn_output"]
    kinds += ["ffn_up_exps", "ffn_down_exps"] if n > 1 else ["ffn_gate", "ffn_down"]
    scaled = {f"blk.1.{kind}": factors if "exps" in kind else factors[:1] for kind in kinds}
    files = {f"{weight}.scale": factor for weight, factor in scaled.items()}
    files["blk.0.attn_q.input_scale"] = factors[:1]  # nothing uses it
    weights = write_model(TINY[name], tmp_path / "m.gguf", replace=files)
    for weight, factor in scaled.items():
        weights[f"{weight}.weight"] = (weights[f"{weight}.weight"].T * factor).T
    tokens = tokens_of(6, seed=5)
    actual = run(tmp_path / "m.gguf").prompt(tokens)
    assert_logits(actual, forward(TINY[name], weights, tokens))


def test_factors_of_larger_matrices(tmp_path: Path, run: Run) -> None:
    """Queries, keys and values may have one factor, and so may the experts' gate and up."""
    factors = np.linspace(0.5, 2, TINY["qwen3moe"].n_expert, dtype=np.float32)
    whole = {"attn_qkv": factors[:1], "ffn_gate_up_exps": factors}
    parts = {"attn_v": "attn_qkv", "ffn_gate_exps": "ffn_gate_up_exps"}
    parts |= {"ffn_up_exps": "ffn_gate_up_exps"}  # norms remove the factors of queries and keys
    files = {f"blk.0.{name}.scale": factor for name, factor in whole.items()}
    weights = write_model(TINY["qwen3moe"], tmp_path / "m.gguf", replace=files)
    for name, larger in parts.items():
        full = f"blk.0.{name}.weight"
        weights[full] = (weights[full].T * whole[larger]).T
    tokens = tokens_of(6, seed=5)
    actual = run(tmp_path / "m.gguf").prompt(tokens)
    assert_logits(actual, forward(TINY["qwen3moe"], weights, tokens))


def test_layers_of_different_shapes(tmp_path: Path, run: Run) -> None:
    """Head counts and widths can be arrays. Here all elements are equal."""
    keys = {"feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2}
    arrays = {f"llama.{key}": [value] * 2 for key, value in keys.items()}
    weights = write_model(TINY["llama"], tmp_path / "m.gguf", metadata=arrays)
    tokens = tokens_of(5, seed=6)
    actual = run(tmp_path / "m.gguf").prompt(tokens)
    assert_logits(actual, forward(TINY["llama"], weights, tokens))


# --- the graph ---


@pytest.mark.parametrize("name", TINY)
def test_names_and_edges(name: str, tmp_path: Path, run: Run) -> None:
    write_model(TINY[name], tmp_path / "m.gguf")
    _, logits = run(tmp_path / "m.gguf").build(n_tokens=5, n_outputs=2)
    graph = Graph(logits)
    names = [node.name for node in graph.nodes]
    moe = bool(TINY[name].n_expert)
    wanted = ["inp_embd", "attn_norm-0", "Qcur-0", "Kcur-1", "Vcur-1", "kqv_out-0", "attn_out-1"]
    wanted += ["ffn_inp-0", "ffn_norm-1", "ffn_moe_out-0" if moe else "ffn_out-0", "l_out-1"]
    wanted += ["result_norm", "result_output"]
    assert set(wanted) <= set(names)
    assert logits.ne == (288, 2, 1, 1)
    assert logits.name == "result_output"
    attentions = [node for node in graph.nodes if node.op is Op.FLASH_ATTN_EXT]
    assert len(attentions) == 2
    for node in attentions:
        assert [src.op for src in node.src[1:3]] == [Op.SET_ROWS] * 2
    ffn = next(node for node in graph.nodes if node.name == "ffn_norm-1")
    assert ffn.ne[1] == 2, "rows without outputs are dropped before the last feed-forward"


# --- goldens of other implementations ---


def golden(name: str) -> tuple[Path, list[dict[str, Any]]]:
    file = DATA / "golden" / f"{name}.json"
    if not file.exists():
        pytest.skip(f"no golden data: {file} is absent")
    return DATA / "models" / f"{name}.gguf", json.loads(file.read_text())["cases"]


SMALL = ["llama3-rope", "llama-linear", "qwen2", "qwen3", "mixtral", "qwen3moe"]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("n_gpu_layers", [0, 2])
def test_golden_random_models(name: str, n_gpu_layers: int, run: Run) -> None:
    path, cases = golden(f"tiny-{name}")
    for case in cases if n_gpu_layers == 0 else cases[:1]:
        tokens = case["prompt_tokens"]
        logits = run(path, n_gpu_layers, n_ctx=len(tokens)).prompt(tokens)
        expected = np.array(case["next_token_logprobs"])
        actual = log_softmax(logits[-1])
        assert divergence(expected, actual) <= 1e-5
        assert np.abs(expected - actual)[expected > -20].max() <= 0.02
        rows = np.arange(len(tokens))
        lead = logits.max(axis=-1) - logits[rows, case["argmax_per_position"]]
        assert lead.max() <= 0.01


@pytest.mark.parametrize(("type", "limit"), [("F32", 5e-5), ("Q8_0", 5e-3), ("Q4_0", 5e-3)])
@pytest.mark.parametrize("n_gpu_layers", [0, 3])
def test_golden_stories(type: str, limit: float, n_gpu_layers: int, run: Run) -> None:
    path, cases = golden(f"stories260K-{type}")
    for case in cases:
        tokens = case["prompt_tokens"]
        actual = log_softmax(run(path, n_gpu_layers).prompt(tokens)[-1])
        expected = np.array(case["next_token_logprobs"])
        assert divergence(expected, actual) <= limit
        if type == "F32":
            assert np.abs(expected - actual).max() <= 0.02


def test_golden_text(run: Run) -> None:
    path, cases = golden("stories260K-F32")
    runner = run(path, n_ctx=96)
    tokens = list(cases[0]["prompt_tokens"])
    logits = runner.prompt(tokens)
    for wanted in cases[0]["greedy_tokens"][:16]:
        assert int(logits[-1].argmax()) == wanted
        tokens.append(wanted)
        logits = runner.step([(wanted, 0, len(tokens) - 1)], [0])
