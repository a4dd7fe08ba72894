"""Whole models on a GPU: near the CPU's results, computed by no other device, with the same bits in
every batch, chunk and size of graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from control_vectors import write_control
from golden_data import STORIES, TINY, check_golden, golden_cases, model_path
from gpus import Gpus, emulated_gpus
from model_files import FEW_BITS, TYPES, ModelFiles
from model_run import (
    MOST_DIVERGENCE,
    N_UBATCH,
    F32Array,
    cpu,
    decode,
    divergence,
    greedy,
    loaded,
    logits_of,
    opened,
    some_tokens,
)
from placed import placed
from tiny_models import TINY as ARCHITECTURES
from tiny_models import write_model
from window_models import write_window_model

from lamella.base.errors import BackendError
from lamella.base.settings import NO_FUSION
from lamella.graph import GGMLType, Op
from lamella.graph.op import VIEW_OPS
from lamella.model.context import Context
from lamella.model.control_file import NO_CONTROL, ControlFiles, read_control_vector
from lamella.model.graphs import GraphParams
from lamella.model.loader import load_model
from lamella.model.params import ContextParams

pytestmark = pytest.mark.timeout(900)

REAL_SHAPES = ("0.5b", "1b")
EMULATED_TYPES = ("Q4_0",)  # --full adds the others; goldens and architectures have F16 and Q8_0
MORE_KV_TYPES = (
    GGMLType.F32,
    GGMLType.F16,
    GGMLType.BF16,
    GGMLType.Q4_0,
    GGMLType.Q5_1,
    GGMLType.IQ4_NL,
)
# others match on the CPU, and are near it here; --full adds them
GOLDEN: Final = ("stories260K-F32", "tiny-mixtral")
GREEDY: Final = ("tiny-llama3-rope",)


def golden(names: Iterable[str], default: Sequence[str]) -> pytest.MarkDecorator:
    params = [pytest.param(n, marks=() if n in default else pytest.mark.full) for n in names]
    return pytest.mark.parametrize("name", params)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"shape", "type"} <= {*metafunc.fixturenames}:
        real = [(shape, type) for shape in REAL_SHAPES for type in TYPES]
        real += [("small", type) for type in FEW_BITS]
        types = (*TYPES, *FEW_BITS) if metafunc.config.getoption("--full") else EMULATED_TYPES
        emulated = [("small", type) for type in types]
        chosen = real if metafunc.config.getoption("--cuda") else emulated
        metafunc.parametrize(("shape", "type"), chosen)


def assert_all_on(gpus: Gpus, context: Context) -> None:
    """Check that all graphs have only two splits: the CPU's embeddings, and the GPU's."""
    for graph in context._graphs.values():
        splits = graph.scheduled.splits
        assert [s.backend.name for s in splits] == ["CPU", gpus.first.name]
        (embedding,) = [n for n in splits[0].graph.nodes if n.op not in VIEW_OPS]
        assert embedding.op is Op.GET_ROWS
        assert embedding.src[0].name == "token_embd.weight"


# --- near the CPU ---


@golden([*STORIES, *TINY], GOLDEN)
def test_shared_models_match_their_goldens_and_the_cpu(gpus: Gpus, name: str) -> None:
    type = GGMLType.F32 if name in TINY else GGMLType.F16
    path = model_path(name)
    params: dict[str, Any] = {"type_k": type, "type_v": type}
    with (
        opened(path, **params) as on_cpu,
        opened(path, gpus.devices[:1], **params) as context,
    ):
        for case in golden_cases(name):
            tokens = case["prompt_tokens"]
            logits = logits_of(context, tokens)
            check_golden(name, case, logits)
            assert divergence(logits, logits_of(on_cpu, tokens)) <= MOST_DIVERGENCE
        assert_all_on(gpus, context)


@golden(["stories260K-F32", *TINY], GREEDY)
def test_greedy_tokens_are_the_golden_ones(gpus: Gpus, name: str) -> None:
    type = GGMLType.F32 if name in TINY else GGMLType.F16
    n, cases = gpus.pick(64, 12), golden_cases(name)
    with opened(model_path(name), gpus.devices[:1], type_k=type, type_v=type) as context:
        for case in gpus.pick(cases, cases[:1]):
            expected = case["greedy_tokens"][:n]
            assert greedy(context, case["prompt_tokens"], len(expected)) == expected


# the other architectures differ in the scaling of positions, in tied weights or in more biases
KINDS: Final = ("llama", "mixtral", "qwen2", "qwen3", "qwen3moe")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in KINDS else pytest.mark.full) for n in ARCHITECTURES],
)
def test_architectures(gpus: Gpus, files: ModelFiles, name: str) -> None:
    for type in gpus.pick(("F32", "F16", "BF16", "Q8_0", "Q4_0"), ("Q8_0",)):
        path = files.tiny(name, type)
        with opened(path) as on_cpu, opened(path, gpus.devices[:1]) as context:
            tokens = some_tokens(context, 40)
            expected = logits_of(on_cpu, tokens)
            for chunks in ((), (3, 1, 8)):
                assert divergence(logits_of(context, tokens, *chunks), expected) <= MOST_DIVERGENCE
            assert_all_on(gpus, context)


@pytest.mark.parametrize("name", ["llama", "qwen3"])  # qwen3 has one matrix for both ends
def test_embeddings_on_the_gpu_have_the_same_bits(gpus: Gpus, files: ModelFiles, name: str) -> None:
    path, here = files.tiny(name, "Q8_0"), gpus.devices[:1]
    with opened(path, here) as apart, opened(path, here, embd_offload=True) as context:
        tokens = some_tokens(context, 40)
        for chunks in ((), (3, 1, 8)):
            expected = logits_of(apart, tokens, *chunks)
            assert logits_of(context, tokens, *chunks).tobytes() == expected.tobytes()
        for graph in context._graphs.values():
            assert [s.backend.name for s in graph.scheduled.splits] == [gpus.first.name]
        if name == "qwen3":
            assert (
                context.model.weights["token_embd.weight"] is context.model.weights["output.weight"]
            )


def test_random_models_of_every_type(gpus: Gpus, files: ModelFiles, shape: str, type: str) -> None:
    path = files.random(shape, type)
    try:
        with (
            opened(path) as on_cpu,
            opened(path, gpus.devices[:1]) as context,
        ):
            tokens = some_tokens(context, gpus.pick(96, 40))
            expected = logits_of(on_cpu, tokens)
            prefilled = logits_of(context, tokens)
            assert divergence(prefilled, expected) <= MOST_DIVERGENCE
            in_parts = logits_of(context, tokens, len(tokens) - 3, 1)
            assert in_parts.tobytes() == prefilled.tobytes()
            assert_all_on(gpus, context)
    finally:
        path.unlink()


# --- the same bits ---


def batched(context: Context, tokens: list[int], others: int) -> F32Array:
    """Like `logits_of`, token by token, in batches with other sequences."""
    seq = context.pool.new_sequence()
    beside = [context.pool.new_sequence() for _ in range(others)]
    rows = []
    for i, token in enumerate(tokens):
        runs = [(s, some_tokens(context, 1 + (i + j) % 3, i)) for j, s in enumerate(beside)]
        runs.insert(i % (others + 1), (seq, [token]))
        at = sum(len(run[1]) for run in runs[: i % (others + 1)])
        rows.append(decode(context, *runs)[at])
    for s in (seq, *beside):
        s.free()
    return np.stack(rows)


@pytest.mark.parametrize(
    "kv_type",
    [GGMLType.Q8_0, *(pytest.param(t, marks=pytest.mark.full) for t in MORE_KV_TYPES)],
    ids=lambda t: f"kv {t.name}",
)
def test_bits_depend_neither_on_chunks_nor_on_other_sequences(
    gpus: Gpus, files: ModelFiles, kv_type: GGMLType
) -> None:
    kv: dict[str, Any] = {"type_k": kv_type, "type_v": kv_type}
    for type in gpus.pick(TYPES, ("F16" if kv_type is GGMLType.F16 else "Q4_0",)):
        path = files.random(gpus.pick("0.5b", "small"), type)
        n_ctx = gpus.pick(4096, 512)
        with opened(path, gpus.devices[:1], n_ctx=n_ctx, n_parallel=8, **kv) as context:
            tokens = some_tokens(context, gpus.pick(150, 37))
            whole = logits_of(context, tokens)
            for chunks in gpus.pick(((33, 1), (20, 5), (1,), (7,)), ((20, 5, 8, 1),)):
                assert logits_of(context, tokens, *chunks).tobytes() == whole.tobytes(), chunks
            some = gpus.pick(150, 6)
            for others in gpus.pick((1, 2, 7), (4,)):
                found = batched(context, tokens[:some], others)
                assert found.tobytes() == whole[:some].tobytes(), others
        with opened(path, gpus.devices[:1], n_ubatch=10, n_parallel=2, **kv) as context:
            assert logits_of(context, tokens).tobytes() == whole.tobytes(), "small graphs"


def test_bits_of_long_sequences(gpus: Gpus, files: ModelFiles) -> None:
    """Attention has several partitions of 256 positions, whose order matters."""
    n = gpus.pick(900, 530)
    path = files.random(gpus.pick("0.5b", "thin"), "Q4_0")
    with opened(path, gpus.devices[:1], n_ctx=1024, n_ubatch=512) as context:
        tokens = some_tokens(context, n)
        whole = logits_of(context, tokens)
        for chunks in ((n - 4, 1), (250, 3, 1, 200)):
            assert logits_of(context, tokens, *chunks).tobytes() == whole.tobytes(), chunks


def test_fused_chains_change_no_bits(gpus: Gpus, files: ModelFiles) -> None:
    for name in ("llama-bias", "qwen3moe"):
        path = files.tiny(name, "Q4_0")
        found = []
        for switch in (0, 1):
            with NO_FUSION.set(switch), opened(path, gpus.devices[:1]) as context:
                tokens = some_tokens(context, gpus.pick(40, 18))
                found.append([logits_of(context, tokens, *c).tobytes() for c in ((), (15, 1))])
        assert found[0] == found[1]
        assert found[0][0] == found[0][1]


def test_bits_do_not_depend_on_the_order_of_threads(gpus: Gpus, files: ModelFiles) -> None:
    if gpus.is_real:
        pytest.skip("a real device has its own order")
    with emulated_gpus(n_gpus=1, reverse=True) as others:
        path = files.tiny("mixtral", "Q4_0")
        with opened(path, gpus.devices[:1]) as a, opened(path, others.devices) as b:
            tokens = some_tokens(a, 40)
            for chunks in ((), (30, 1)):
                first = logits_of(a, tokens, *chunks)
                assert logits_of(b, tokens, *chunks).tobytes() == first.tobytes()


def test_control_vectors_are_added_on_the_gpu(
    gpus: Gpus, files: ModelFiles, tmp_path: Path
) -> None:
    path = files.random("deep", "F16")
    rng = np.random.default_rng(4)
    vectors = {f"direction.{il}": rng.standard_normal(64, np.float32) for il in (1, 2, 4)}
    control = ControlFiles((read_control_vector(write_control(tmp_path / "c.gguf", vectors)),))
    found = []
    for devices, used in (((), control), (gpus.devices[:1], control), ((), NO_CONTROL)):
        params = ContextParams(n_ctx=256, n_ubatch=N_UBATCH)
        with (
            load_model(path, placed(cpu(), devices), control=used) as model,
            Context(model, params) as context,
        ):
            tokens = some_tokens(context, 40)
            found.append(logits_of(context, tokens))
            if devices:
                assert_all_on(gpus, context)
                assert logits_of(context, tokens, 7, 1).tobytes() == found[-1].tobytes()
    on_cpu, on_gpu, plain = found
    assert divergence(on_gpu, on_cpu) < MOST_DIVERGENCE < divergence(plain, on_cpu)


# --- compiling, and errors ---


@pytest.mark.parametrize("type", ["Q4_0", pytest.param("F16", marks=pytest.mark.full)])
def test_nothing_is_compiled_once_a_context_is_open(
    gpus: Gpus, files: ModelFiles, type: str
) -> None:
    with ExitStack() as stack:
        fresh = gpus if gpus.is_real else stack.enter_context(emulated_gpus(n_gpus=1))
        for path in (files.random(gpus.pick("0.5b", "deep"), type), files.tiny("mixtral", type)):
            with opened(path, fresh.devices[:1], n_parallel=8) as context:
                modules = set(fresh.first.library._modules)
                tokens = some_tokens(context, 64)
                for n, chunks in ((64, ()), (14, (1, 2, 3, 4)), (38, (5, 7, 9, 17))):
                    logits_of(context, tokens[:n], *chunks)
                for others in (1, 3, 7):
                    batched(context, tokens[:1], others)
                assert set(fresh.first.library._modules) == modules


@pytest.mark.parametrize("n_parallel", [pytest.param(1, marks=pytest.mark.full), 4])
def test_guesses_compile_nothing_and_need_no_more_memory(
    gpus: Gpus, tmp_path: Path, n_parallel: int
) -> None:
    """Steps of few sequences with several outputs each, whose candidates the device chooses. The
    output's type differs from that of other weights, so it has kernels of its own."""
    write_model(
        ARCHITECTURES["llama"],
        path := tmp_path / "tiny.gguf",
        GGMLType.Q4_0,
        types={"output.weight": GGMLType.Q8_0},
    )
    with ExitStack() as stack:
        fresh = gpus if gpus.is_real else stack.enter_context(emulated_gpus(n_gpus=1))
        with opened(path, fresh.devices[:1], n_parallel=n_parallel) as context:
            modules, n_bytes = set(fresh.first.library._modules), context.n_bytes()
            assert context._top_sizes
            for n in (2, 4, 8, 16, 32, 64):
                assert n <= context.n_checked_max
                for n_seqs in {1, min(n, n_parallel)}:
                    for n_top in (0, *context._top_sizes):
                        for masked in {False, n_top > 0}:
                            context._graph_for(GraphParams(n, n, n_seqs, n_top, masked))
            assert set(fresh.first.library._modules) == modules
            assert context.n_bytes() == n_bytes


def test_a_bad_token_is_an_error_and_the_context_goes_on(gpus: Gpus, files: ModelFiles) -> None:
    """Even with the embeddings on the device."""
    gpu = gpus.first
    overrides = (("token_embd", gpu.buffer_type),)
    with (
        loaded(files.tiny("llama", "Q8_0"), [gpu], overrides=overrides) as model,
        Context(model, ContextParams(n_ctx=256)) as context,
    ):
        tokens = some_tokens(context, 20)
        before = logits_of(context, tokens)
        for bad in (context.n_vocab, -1):
            with pytest.raises(BackendError, match=rf"get_rows .*: index {bad} must"):
                logits_of(context, [1, 2, bad, 3])
        assert logits_of(context, tokens).tobytes() == before.tobytes()


def test_pages_behind_a_window_are_never_read(gpus: Gpus, tmp_path: Path) -> None:
    """A pool of few pages gives the bits of a pool that keeps all, and values near the CPU's."""
    path = tmp_path / "window.gguf"
    write_window_model(path, n_layer=2, n_swa=40)
    params: dict[str, Any] = {"n_ctx": 512, "n_parallel": 1, "swa_prefix": 0}
    with (
        opened(path, **params) as on_cpu,
        opened(path, gpus.devices[:1], **params) as context,
        opened(path, gpus.devices[:1], swa_full=True, **params) as whole,
    ):
        assert context.pool.gives_back
        assert not whole.pool.gives_back
        tokens, chunks = some_tokens(context, 200), (61, 1, 1, 64, 1, 64)
        logits = logits_of(context, tokens, *chunks)
        assert logits.tobytes() == logits_of(whole, tokens, *chunks).tobytes()
        assert divergence(logits, logits_of(on_cpu, tokens, *chunks)) <= MOST_DIVERGENCE
