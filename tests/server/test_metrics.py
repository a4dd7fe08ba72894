"""GET /metrics: the samples before, during and after requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from fake_context import WAIT_S, FakeContext
from http_world import RunningServer, fake_plan, make_model, running
from open_params import open_params
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families as parse
from tiny_models import TINY, write_model

from lamella.alloc.buffer import Buffer, BufferType, Usage
from lamella.model.layer_memory import Window
from lamella.runtime.displaced import Displaced
from lamella.runtime.instance import Instance
from lamella.runtime.open import open_instance
from lamella.server.config import ServerConfig
from lamella.server.metrics import _written, gauge

WITH_METRICS = ServerConfig(port=0, metrics=True)
HISTOGRAMS = (
    *("lamella_ttft_seconds", "lamella_inter_token_seconds", "lamella_queue_seconds"),
    *("lamella_request_seconds", "lamella_prompt_length", "lamella_output_length"),
)
Samples = dict[str, float]


def scrape(server: RunningServer) -> Samples:
    """The value of every sample, by its name and its sorted labels."""
    reply = server.get("/metrics")
    assert reply.status == 200, reply.raw
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: Samples = {}
    for family in parse(reply.raw.decode()):
        assert family.documentation
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with running(config=WITH_METRICS) as server:
        yield server


def test_metrics_need_the_flag() -> None:
    with running() as server:
        error = server.get("/metrics").error
    assert (error["code"], error["type"]) == (501, "not_supported_error")
    assert "start the server with --metrics" in error["message"]


def test_metrics_need_a_key() -> None:
    with running(config=replace(WITH_METRICS, api_keys=("k",))) as server:
        assert server.get("/metrics").status == 401
        assert server.get("/metrics", Authorization="Bearer k").status == 200


def test_names_of_metrics(server: RunningServer) -> None:
    before = time.time()
    assert {name for name in scrape(server) if "_bucket{" not in name} == {
        "llamacpp:prompt_tokens_total",
        "llamacpp:prompt_tokens_cached_total",
        "llamacpp:prompt_seconds_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:tokens_predicted_seconds_total",
        "llamacpp:n_decode_total",
        "llamacpp:n_tokens_max",
        "llamacpp:spec_decode_num_draft_tokens_total",
        "llamacpp:spec_decode_num_accepted_tokens_total",
        "llamacpp:spec_decode_num_drafts_total",
        "llamacpp:prompt_tokens_seconds",
        "llamacpp:predicted_tokens_seconds",
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:n_busy_slots_per_decode",
        "lamella_graphs_built_total",
        "lamella_graphs_reused_total",
        "lamella_kv_pages{group=full}",
        "lamella_kv_pages_free{group=full}",
        "lamella_reasoning_tokens_total",
        "lamella_constrained_requests_total",
        "lamella_masks_total",
        "lamella_mask_seconds_total",
        "lamella_mask_wait_seconds_total",
        "lamella_accepted_length",
        "lamella_healthy",
        "lamella_step_seconds",
        "lamella_steps_failed_total",
        "lamella_prompts_total",
        "lamella_prefix_hits_total",
        *(f"{name}_{part}" for name in HISTOGRAMS for part in ("count", "sum")),
    }
    started = int(server.get("/metrics").headers["process-start-time-unix"])
    assert before - WAIT_S <= started <= before


def test_shells_can_compare_whole_numbers() -> None:
    numbers = {"a": 3, "b": 12345678.0, "c": 2.5, "d": 1e16}
    text = _written([gauge(f"llamacpp:{name}", "", value) for name, value in numbers.items()])
    values = [line.split(" ")[1] for line in text.decode().splitlines() if line[0] != "#"]
    assert values == ["3", "12345678", "2.5", "10000000000000000"]


def test_types(server: RunningServer) -> None:
    kinds = {f.name: f.type for f in parse(server.get("/metrics").raw.decode())}
    assert kinds["llamacpp:prompt_tokens"] == "counter"
    assert kinds["llamacpp:requests_processing"] == "gauge"
    assert kinds["lamella_displaced_nodes"] == "gauge"


def test_counters_begin_at_zero(server: RunningServer) -> None:
    found = scrape(server)
    pages = found.pop("lamella_kv_pages{group=full}")
    assert found.pop("lamella_healthy") == 1
    assert pages == found.pop("lamella_kv_pages_free{group=full}") == 128
    assert set(found.values()) == {0.0}


def test_counters_after_requests(server: RunningServer) -> None:
    # a step has 16 tokens: the first prompt, with its BOS, takes two steps
    server.ok("/completion", prompt="a" * 20, n_predict=5, ignore_eos=True)
    server.ok("/completion", prompt="abc", n_predict=0)
    found = scrape(server)
    assert found["llamacpp:prompt_tokens_total"] == 21 + 2
    assert found["llamacpp:prompt_tokens_cached_total"] == 2  # BOS and "a"
    assert found["llamacpp:tokens_predicted_total"] == 5
    assert found["llamacpp:n_decode_total"] == 2 + 4 + 1
    assert found["llamacpp:n_tokens_max"] == 21 + 5
    assert found["llamacpp:n_busy_slots_per_decode"] == 1
    assert found["llamacpp:prompt_seconds_total"] > 0
    assert found["llamacpp:tokens_predicted_seconds_total"] > 0
    assert found["lamella_kv_pages_free{group=full}"] == 128


def test_masks(server: RunningServer) -> None:
    server.ok("/completion", prompt="abc", n_predict=5, ignore_eos=True)
    server.ok("/completion", prompt="abc", n_predict=5, regex="a{9}")
    found = scrape(server)
    assert found["lamella_constrained_requests_total"] == 1
    assert found["lamella_masks_total"] == 5
    assert found["lamella_mask_seconds_total"] > 0
    assert found["lamella_mask_wait_seconds_total"] >= 0


def test_pages_of_each_group() -> None:
    context = FakeContext(windows=[Window(8)], n_seqs=2)
    model = partial(make_model, context, n_parallel=2)
    with running(model, config=WITH_METRICS) as server:
        before = scrape(server)
        server.ok("/completion", prompt="a" * 40, n_predict=5, ignore_eos=True)
        after = scrape(server)
    names = [f"lamella_kv_pages{{group={group}}}" for group in ("full", "window 8")]
    # two windows, ubatches of 16 tokens, and a page each for alignment, of 4 tokens
    assert [before[name] for name in names] == [128, 14]
    assert [after[name.replace("pages", "pages_free")] for name in names] == [128, 14]


def test_rates_since_the_last_request(server: RunningServer) -> None:
    server.ok("/completion", prompt="abc", n_predict=5, ignore_eos=True)
    first = scrape(server)
    seconds = first["llamacpp:prompt_seconds_total"]
    n_prompt = first["llamacpp:prompt_tokens_total"]
    assert first["llamacpp:prompt_tokens_seconds"] == pytest.approx(n_prompt / seconds)
    seconds = first["llamacpp:tokens_predicted_seconds_total"]
    assert first["llamacpp:predicted_tokens_seconds"] == pytest.approx(5 / seconds)
    second = scrape(server)
    assert second["llamacpp:prompt_tokens_seconds"] == 0
    assert second["llamacpp:predicted_tokens_seconds"] == 0
    assert second["llamacpp:tokens_predicted_total"] == 5


def test_running_and_waiting_requests() -> None:
    """The engine is inside a step, and the request for metrics does not wait for its end."""
    context = FakeContext()
    in_step, go_on = threading.Event(), threading.Event()

    def block(step: int) -> None:
        if step == 1:
            in_step.set()
            go_on.wait(WAIT_S)

    context.on_decode = block
    with running(lambda: make_model(context, n_parallel=1), WITH_METRICS) as server:
        threads = [
            threading.Thread(
                target=server.post,
                args=("/completion", {"prompt": "abc", "n_predict": 2, "ignore_eos": True}),
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        assert in_step.wait(WAIT_S)
        until = time.monotonic() + WAIT_S
        while server.model.engine.n_waiting < 2 and time.monotonic() < until:
            time.sleep(0.001)
        found = scrape(server)
        go_on.set()
        for thread in threads:
            thread.join(WAIT_S)
        after = scrape(server)
    assert found["llamacpp:requests_processing"] == 1
    assert found["llamacpp:requests_deferred"] == 2
    assert found["lamella_kv_pages_free{group=full}"] < 128
    assert found["llamacpp:n_decode_total"] == 0
    assert after["llamacpp:requests_processing"] == after["llamacpp:requests_deferred"] == 0
    assert after["llamacpp:tokens_predicted_total"] == 6
    assert after["lamella_kv_pages_free{group=full}"] == 128


def test_predicted_tokens_count_after_a_disconnect() -> None:
    context = FakeContext()
    with running(lambda: make_model(context), WITH_METRICS) as server:
        reached = threading.Event()
        context.on_decode = lambda step: reached.set() if step == 4 else time.sleep(0.002)
        connection = server.connect()
        body = b'{"prompt": "abc", "n_predict": -1, "ignore_eos": true, "stream": true}'
        connection.request("POST", "/completion", body)
        assert reached.wait(WAIT_S)
        connection.sock.close()
        connection.close()
        until = time.monotonic() + WAIT_S
        while server.model.engine.n_running and time.monotonic() < until:
            time.sleep(0.001)
        found = scrape(server)
    assert found["llamacpp:tokens_predicted_total"] >= 3
    assert found["llamacpp:tokens_predicted_seconds_total"] > 0


def displaced(cause: str, wanted: str = "SIM0") -> Displaced:
    return Displaced("n", "MUL_MAT", "CPU", wanted, cause, "why", "fix")


def test_displaced_nodes_and_buffers() -> None:
    def model() -> Instance:
        made = make_model()
        sizes = {("CPU", "weights"): 7, ("SIM0", "compute"): 2**40}
        made.context.buffer_bytes = lambda: sizes  # type: ignore[method-assign]
        prefill = (displaced("1.wgt0"), displaced("1.wgt0"), displaced("2.sup", 'a"b'))
        return replace(made, plan=fake_plan((displaced("1.wgt0"),), prefill))

    with running(model, WITH_METRICS) as server:
        found = scrape(server)
    name, rest = "lamella_displaced_nodes{cause=", "op=MUL_MAT,wanted="
    assert found[f"{name}1.wgt0,device=CPU,graph=decode,{rest}SIM0}}"] == 1
    assert found[f"{name}1.wgt0,device=CPU,graph=prefill,{rest}SIM0}}"] == 2
    assert found[f'{name}2.sup,device=CPU,graph=prefill,{rest}a"b}}'] == 1
    assert found["lamella_buffer_bytes{buffer_type=CPU,usage=weights}"] == 7
    assert found["lamella_buffer_bytes{buffer_type=SIM0,usage=compute}"] == 2**40


def test_servers_have_separate_metrics() -> None:
    before = {family.name for family in REGISTRY.collect()}
    with running(config=WITH_METRICS) as one, running(config=WITH_METRICS) as other:
        one.ok("/completion", prompt="abc", n_predict=2, ignore_eos=True)
        assert scrape(one)["llamacpp:tokens_predicted_total"] == 2
        assert scrape(other)["llamacpp:tokens_predicted_total"] == 0
    assert {family.name for family in REGISTRY.collect()} == before


def test_a_real_model(tmp_path: Path) -> None:
    write_model(TINY["llama"], tmp_path / "m.gguf")
    params = open_params(tmp_path / "m.gguf", n_ctx=64, devices=("none",))
    instance = open_instance(params)
    with running(lambda: instance, WITH_METRICS) as server:
        before = scrape(server)
        server.ok("/completion", prompt="abc", n_predict=6, ignore_eos=True)
        after = scrape(server)
    instance.close()
    built, reused = (
        after[f"lamella_graphs_{what}_total"] - before[f"lamella_graphs_{what}_total"]
        for what in ("built", "reused")
    )
    assert built + reused == after["llamacpp:n_decode_total"] == 6
    assert reused >= 4
    assert after["lamella_kv_pages{group=full}"] == 2


@pytest.mark.parametrize("draft", [False, True])
def test_bytes_of_allocated_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft: bool
) -> None:
    """The sizes are those of the allocated buffers, not of the plan, so they grow with buffers."""
    made: list[Buffer] = []
    plain = BufferType.alloc_buffer

    def alloc_buffer(self: BufferType, size: int) -> Buffer:
        made.append(plain(self, size))
        return made[-1]

    write_model(TINY["llama-tied"], tmp_path / "m.gguf")
    params = open_params(tmp_path / "m.gguf", n_ctx=64, devices=("sim",), n_gpu_layers=2)
    if draft:
        params = params.change(draft_model=params.model.path)
    monkeypatch.setattr(BufferType, "alloc_buffer", alloc_buffer)
    instance = open_instance(params)
    with running(lambda: instance, WITH_METRICS) as server:
        found, before = scrape(server), list(made)
        instance.context._backends[instance.context.model.devices[0]].workspace(1 << 20)
        grown = scrape(server)
    expected: Samples = {}
    for buffer in before:
        if buffer.size and not buffer.freed:
            use = "kv" if buffer.usage is Usage.ANY else buffer.usage.value
            name = f"lamella_buffer_bytes{{buffer_type={buffer.buft.name},usage={use}}}"
            expected[name] = expected.get(name, 0) + buffer.size
    sizes = {name: n for name, n in found.items() if name.startswith("lamella_buffer_bytes") and n}
    assert sizes == expected
    work = "lamella_buffer_bytes{buffer_type=SIM0,usage=work}"
    assert instance.context.buffer_bytes()["SIM0", "work"] == 1 << 20
    assert grown[work] == instance.buffer_bytes()["SIM0", "work"] > found[work]
    instance.close()
    assert instance.buffer_bytes() == {}
