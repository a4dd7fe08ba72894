"""LoRA adapters: the logits of a merged model, and equal bits in every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from arch_goldens import log_softmax
from bench_lora import times_of
from make_adapter import Matrices, arch_of, named, random_matrices, write_adapter
from tiny_models import N_VOCAB, TINY, write_model

from lamella.base.errors import ModelFileError
from lamella.graph import GGMLType
from lamella.graph.op import Op
from lamella.kernels.cpu import CpuDevice
from lamella.kernels.sim import SimDevice
from lamella.model.adapter_file import read_adapter
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.loader import LoadedModel, load_model
from lamella.model.params import ContextParams, PlacementParams
from lamella.model.placement import Placement

F32Array = npt.NDArray[np.float32]
Scales = tuple[float, ...]

RNG = np.random.default_rng(3)
TEXT: list[int] = RNG.integers(0, N_VOCAB, 60).tolist()
ALL = r"\.(attn_|ffn_|output)|^output\.weight$"
EXACT = ContextParams(n_ctx=128, type_k=GGMLType.F32, type_v=GGMLType.F32)
NONE, FIRST, SECOND, BOTH = (0.0, 0.0), (1.0, 0.0), (0.0, -0.5), (0.5, 2.0)


def files(folder: Path, model: Path, changed: str = ALL) -> list[Path]:
    """Two adapters of different ranks and factors."""
    found = []
    for i, (rank, alpha) in enumerate(((4, 8.0), (3, None))):
        matrices = random_matrices(model, rank, changed=changed, strength=0.3, seed=i)
        found.append(folder / f"adapter-{i}.gguf")
        write_adapter(found[-1], arch_of(model), named(matrices), alpha=alpha)
    return found


def merged(
    weights: Mapping[str, F32Array], changes: Sequence[tuple[float, Matrices]]
) -> dict[str, F32Array]:
    found: dict[str, F32Array] = {}
    for factor, matrices in changes:
        for name, (a, b) in matrices.items():
            product = b.astype(np.float64) @ a.astype(np.float64)
            before = found.get(name, weights[name]).astype(np.float64)
            found[name] = (before + factor * product).astype(np.float32)
    return found


def load(path: Path, adapters: Sequence[Path] = (), device: str = "cpu") -> LoadedModel:
    placement = Placement(cpu=CpuDevice(2))
    if device == "sim":
        params = PlacementParams(n_gpu_layers=2, op_offload=False)
        placement = Placement(cpu=CpuDevice(2), devices=(SimDevice("sim0"),), params=params)
    return load_model(path, placement, adapters=[read_adapter(a) for a in adapters])


def decode(
    context: Context, runs: Sequence[tuple[Sequence[int], Scales]], chunk: int = 64
) -> list[F32Array]:
    """Return the logits of each token of each run, all runs together, `chunk` tokens at a time."""
    seqs = [context.pool.new_sequence() for _ in runs]
    found: list[list[F32Array]] = [[] for _ in runs]
    for begin in range(0, max(len(tokens) for tokens, _ in runs), chunk):
        batch, counts = Batch(), []
        for seq, (tokens, scales) in zip(seqs, runs, strict=True):
            part = list(tokens[begin : begin + chunk])
            counts.append(len(part))
            if part:
                context.append(seq, len(part))
                lora = context.model.adapters.scales(scales)
                batch.add(part, seq, begin, len(part), lora_scales=lora)
        rows = np.split(context.decode(batch), np.cumsum(counts)[:-1])
        for own, part_rows in zip(found, rows, strict=True):
            own.append(part_rows)
    for seq in seqs:
        seq.free()
    return [np.concatenate(parts) for parts in found]


@pytest.fixture
def context(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Context]:
    """A context with two adapters; the parameter is the type of the weights and the device."""
    type, _, device = getattr(request, "param", "F32").partition(" ")
    write_model(TINY["llama"], tmp_path / "m.gguf", GGMLType[type])
    with load(tmp_path / "m.gguf", files(tmp_path, tmp_path / "m.gguf"), device or "cpu") as model:
        context = Context(model, ContextParams(n_ctx=512, n_ubatch=32))
        yield context
        context.close()


# --- the same as a merged model ---


@pytest.mark.parametrize("scales", [FIRST, SECOND, BOTH])
@pytest.mark.parametrize(
    ("name", "changed"),
    [("llama", ALL), ("llama-bias", ALL), ("qwen3", ALL), ("llama", "token_embd|attn_q")],
)
def test_adapters_are_as_a_merged_model(
    tmp_path: Path, name: str, changed: str, scales: Scales
) -> None:
    path, tiny = tmp_path / "m.gguf", TINY[name]
    weights = write_model(tiny, path)
    adapters = files(tmp_path, path, changed.replace("token_embd|", ""))
    changes = []
    for i, (rank, alpha) in enumerate(((4, 8.0), (3, None))):
        matrices = random_matrices(path, rank, changed=changed, strength=0.3, seed=i)
        tensors = named(matrices)
        if "token_embd.weight" in matrices:  # A has a row for each token
            a, b = matrices["token_embd.weight"]
            tensors["token_embd.weight.lora_a"] = np.ascontiguousarray(b)
            tensors["token_embd.weight.lora_b"] = np.ascontiguousarray(a.T)
        write_adapter(adapters[i], tiny.arch, tensors, alpha=alpha)
        changes.append((scales[i] * (1.0 if alpha is None else alpha / rank), matrices))
    write_model(tiny, tmp_path / "merged.gguf", replace=merged(weights, changes))
    logits = []
    for model, files_of, used in ((path, adapters, scales), (tmp_path / "merged.gguf", [], ())):
        with load(model, files_of) as loaded, Context(loaded, EXACT) as context:
            logits += decode(context, [(TEXT, used)])
            if files_of:
                plain = decode(context, [(TEXT, NONE)])[0]
    assert np.abs(log_softmax(logits[0]) - log_softmax(logits[1])).max() < 5e-5
    assert np.abs(log_softmax(plain) - log_softmax(logits[1])).max() > 0.1


def test_a_pair_of_a_fused_tensor_changes_its_parts(tmp_path: Path) -> None:
    parts = [f"blk.0.attn_{kind}.weight" for kind in "qkv"]
    single = write_model(TINY["llama"], tmp_path / "single.gguf")
    fused = np.concatenate([single[name] for name in parts])
    path = tmp_path / "fused.gguf"
    write_model(TINY["llama"], path, without=parts, replace={"blk.0.attn_qkv.weight": fused})
    matrices = random_matrices(path, 4, changed="attn_qkv", strength=0.5)
    write_adapter(tmp_path / "a.gguf", "llama", named(matrices))
    changed = merged({"blk.0.attn_qkv.weight": fused}, [(1.0, matrices)])
    write_model(TINY["llama"], tmp_path / "merged.gguf", without=parts, replace=changed)
    logits = []
    for model, adapters in ((path, [tmp_path / "a.gguf"]), (tmp_path / "merged.gguf", [])):
        with load(model, adapters) as loaded, Context(loaded, EXACT) as context:
            logits += decode(context, [(TEXT, (1.0,) * len(adapters))])
    assert np.abs(log_softmax(logits[0]) - log_softmax(logits[1])).max() < 5e-5


def test_f16_matrices_are_read_exactly(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_model(TINY["llama"], path)
    matrices = {
        name: (a.astype(np.float16).astype(np.float32), b.astype(np.float16).astype(np.float32))
        for name, (a, b) in random_matrices(path, 8).items()
    }
    logits = []
    for type in ("F32", "F16"):
        write_adapter(tmp_path / f"{type}.gguf", "llama", named(matrices, type))
        loaded = load(path, [tmp_path / f"{type}.gguf"])
        with loaded, Context(loaded, EXACT) as context:
            logits += decode(context, [(TEXT, (1.0,))])
    assert np.array_equal(logits[0], logits[1])


# --- the same bits in every batch ---

MIXED = [(TEXT, NONE), (TEXT[:7], FIRST), (TEXT[5:], BOTH), (TEXT, SECOND)]
PLACES = ["F32", "Q8_0", "Q4_0", "Q8_0 sim"]


@pytest.mark.parametrize("context", PLACES, indirect=True)
def test_a_sequence_has_the_bits_that_it_has_alone(context: Context) -> None:
    alone = [decode(context, [run])[0] for run in MIXED]
    for chunk in (64, 5, 1):
        for own, together in zip(alone, decode(context, MIXED, chunk), strict=True):
            assert np.array_equal(own, together), chunk
    assert len({rows[:1].tobytes() for rows in alone}) == len(MIXED)


@pytest.mark.parametrize("context", PLACES, indirect=True)
def test_a_sequence_without_adapters_has_the_bits_without_any(
    context: Context, tmp_path: Path
) -> None:
    in_batch = decode(context, MIXED, 5)[0]
    device = "sim" if len(context.model.devices) > 1 else "cpu"
    model = load(tmp_path / "m.gguf", device=device)
    with model, Context(model, ContextParams(n_ctx=512, n_ubatch=32)) as other:
        assert np.array_equal(decode(other, [(TEXT, ())])[0], in_batch)


def test_only_steps_with_adapters_have_their_nodes(context: Context) -> None:
    decode(context, [(TEXT[:3], NONE)])
    plain = context.plan_graph(3, 3).graph
    assert not {Op.LORA_A, Op.LORA_B} & {node.op for node in plain.nodes}
    n_built = context.n_graphs_built
    decode(context, [(TEXT[:3], FIRST)])
    decode(context, [(TEXT[:3], BOTH)])
    assert context.n_graphs_built == n_built + 1


def test_an_adapter_in_device_memory(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    adapters = files(tmp_path, tmp_path / "m.gguf")
    with load(tmp_path / "m.gguf", adapters, "sim") as model:
        found = {
            name: matrices.a.buffer.buft.name for name, matrices in model.adapters.weights.items()
        }
    assert found["blk.1.attn_q.weight"] == "sim0"
    assert found["output.weight"] == "sim0"
    assert found["blk.0.attn_q.weight"] == "CPU"


# --- adapters that do not fit their model ---


def refusal(tmp_path: Path, change: Callable[[dict[str, npt.NDArray[np.generic]]], None]) -> str:
    """The error of an adapter whose tensors were changed."""
    path = tmp_path / "m.gguf"
    write_model(TINY["mixtral"], path)
    tensors = named(random_matrices(path, 4, changed=r"attn_q\."))
    change(tensors)
    write_adapter(tmp_path / "a.gguf", "llama", tensors)
    with pytest.raises(ModelFileError) as error:
        load(path, [tmp_path / "a.gguf"])
    assert str(tmp_path / "a.gguf") in str(error.value)
    return str(error.value)


def test_wrong_shapes_are_named(tmp_path: Path) -> None:
    name = "blk.0.attn_q.weight"

    def narrow(tensors: dict[str, npt.NDArray[np.generic]]) -> None:
        tensors[f"{name}.lora_a"] = np.ones((4, 32), np.float32)

    def transposed(tensors: dict[str, npt.NDArray[np.generic]]) -> None:
        tensors[f"{name}.lora_b"] = np.ones((4, 64), np.float32)

    def deep(tensors: dict[str, npt.NDArray[np.generic]]) -> None:
        tensors[f"{name}.lora_a"] = np.ones((2, 4, 64), np.float32)

    assert f"{name}.lora_a has [32, 4], must have [64, 4]" in refusal(tmp_path, narrow)
    assert f"{name}.lora_a has [64, 4], must have [64, 64]" in refusal(tmp_path, transposed)
    assert f"{name}.lora_a has [64, 4, 2], must have [64, 4]" in refusal(tmp_path, deep)


@pytest.mark.parametrize("other", ["blk.7.attn_q.weight", "blk.0.attn_norm.weight"])
def test_unknown_matrices_are_named(tmp_path: Path, other: str) -> None:
    def unknown(tensors: dict[str, npt.NDArray[np.generic]]) -> None:
        tensors[f"{other}.lora_a"] = np.ones((4, 64), np.float32)
        tensors[f"{other}.lora_b"] = np.ones((64, 4), np.float32)

    assert f"no adapter can change them: {other}" in refusal(tmp_path, unknown)


def test_experts_are_refused(tmp_path: Path) -> None:
    def of_experts(tensors: dict[str, npt.NDArray[np.generic]]) -> None:
        tensors["blk.0.ffn_up_exps.weight.lora_a"] = np.ones((4, 4, 64), np.float32)
        tensors["blk.0.ffn_up_exps.weight.lora_b"] = np.ones((4, 96, 4), np.float32)

    assert "no adapter can change them: blk.0.ffn_up_exps.weight" in refusal(tmp_path, of_experts)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    def broken(tensors: dict[str, npt.NDArray[np.generic]]) -> None:
        tensors["blk.1.attn_q.weight.lora_b"] = np.full((64, 4), np.nan, np.float32)

    assert "blk.1.attn_q.weight.lora_b: a value is not finite" in refusal(tmp_path, broken)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    adapters = files(tmp_path, tmp_path / "m.gguf")
    write_model(TINY["qwen2"], tmp_path / "other.gguf")
    with pytest.raises(ModelFileError, match="architecture 'llama', the model is 'qwen2'"):
        load(tmp_path / "other.gguf", adapters)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    path = files(tmp_path, tmp_path / "m.gguf")[0]
    with pytest.raises(ModelFileError, match="this is an adapter: open its model, with --lora"):
        load(path)


def test_the_benchmark_times_steps(context: Context) -> None:
    found = times_of(context, 2, 3, 2)
    assert {name: len(ms) for name, ms in found.items()} == {
        "without": 2,
        "every second one": 2,
        "with": 2,
    }
    assert context.pool.n_free == context.pool.n_pages
