"""A server whose model loses a machine: it fails what is in flight, and opens the model again."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from fake_context import WAIT_S
from http_world import RunningServer, make_model, running
from open_params import open_params
from remote_workers import ToyNodes

from lamella.base.errors import DoesNotFitError, UnknownDeviceError
from lamella.cli import serve_models
from lamella.cli.start import open_served
from lamella.kernels import devices
from lamella.kernels.remote.device import RemoteDevice
from lamella.kernels.remote.registry import RemoteRegistry
from lamella.model.shipped import shipped_model
from lamella.runtime.devices import without_lost
from lamella.runtime.instance import EmbeddingInstance, Instance
from lamella.runtime.params import OpenParams
from lamella.runtime.plan import ModelPlan
from lamella.server.config import ServerConfig
from lamella.server.grammars import GrammarQueue
from lamella.server.reopening import reopen_lost
from lamella.server.router.link import RouterLink
from lamella.server.state import ServerState

NAMES = ("ray:one/CPU", "ray:two/CPU")
BODY = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0.0}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[ToyNodes]:
    """A cluster of two nodes."""
    with ExitStack() as stack:
        nodes = ToyNodes(stack)
        nodes.nodes = nodes.nodes[:2]
        registry = RemoteRegistry(nodes)
        monkeypatch.setattr(devices, "_remote", lambda: registry)
        yield nodes
        for device in registry.devices():
            assert isinstance(device, RemoteDevice)
            device.control.close()


def params(**given: object) -> OpenParams:
    return open_params(shipped_model(), devices=NAMES, n_ctx=512, **given)


def lose(nodes: ToyNodes, i: int, *, for_good: bool = True) -> None:
    if for_good:
        nodes.nodes = [node for j, node in enumerate(nodes.nodes) if j != i]
    nodes.workers[i].close()


class Served:
    """Opens the model, and remembers where."""

    def __init__(self, given: OpenParams) -> None:
        self.params = given
        self.layers: list[dict[str, int]] = []

    def __call__(self) -> Instance | EmbeddingInstance:
        model = open_served(self.params, {})
        self.layers.append({d.name: d.n_layers for d in model.plan.devices if d.n_layers})
        return model

    def wait(self, n: int, server: RunningServer) -> None:
        """Wait until the model was opened `n` times, and the server is ready."""
        end = time.monotonic() + WAIT_S
        while len(self.layers) < n or server.get("/health").status != 200:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_the_model_is_opened_again_without_a_lost_machine(nodes: ToyNodes) -> None:
    served = Served(params(tensor_split=(1.0, 2.0)))
    with running(served) as server:
        text = server.ok("/completion", **BODY)["content"]
        assert served.layers == [{"ray:one/CPU": 2, "ray:two/CPU": 4}]
        lose(nodes, 1)
        served.wait(2, server)
        assert served.layers[1] == {"ray:one/CPU": 6}
        assert server.ok("/completion", **BODY)["content"] == text
        lose(nodes, 0)
        served.wait(3, server)
        assert served.layers[2] == {"CPU": 6}
        assert server.ok("/completion", **BODY)["content"] == text


def test_what_is_told_of_the_model_is_of_the_open_one(nodes: ToyNodes) -> None:
    served = Served(params())
    with running(served, ServerConfig(port=0, metrics=True)) as server:
        server.ok("/completion", **BODY)
        assert b"ray:two/CPU" in server.get("/explain.json").raw
        assert server.get("/metrics").status == 200
        lose(nodes, 1)
        served.wait(2, server)
        assert b"ray:two/CPU" not in server.get("/explain.json").raw
        lines = server.get("/metrics").raw.decode().splitlines()
        values = [line.rpartition(" ")[2] for line in lines if not line.startswith("#")]
        assert min(map(float, values)) >= 0


def test_a_machine_whose_worker_died_is_used_again(nodes: ToyNodes) -> None:
    served = Served(params(tensor_split=(1.0, 1.0)))
    with running(served) as server:
        text = server.ok("/completion", **BODY)["content"]
        lose(nodes, 0, for_good=False)
        served.wait(2, server)
        assert served.layers[0] == served.layers[1] == {"ray:one/CPU": 3, "ray:two/CPU": 3}
        assert nodes.started == ["one", "two", "one"]
        assert server.ok("/completion", **BODY)["content"] == text


def test_a_stream_in_flight_ends_with_an_error_that_names_the_machine(nodes: ToyNodes) -> None:
    served = Served(params())
    with running(served) as server, closing(server.connect()) as client:
        body = {**BODY, "n_predict": 400, "ignore_eos": True, "stream": True}
        client.request("POST", "/completion", json.dumps(body))
        stream = client.getresponse()
        assert stream.readline().startswith(b"data: ")
        lose(nodes, 1)
        events = [line for line in stream.read().split(b"\n\n") if line]
        error = json.loads(events[-1].partition(b": ")[2])
        error = error.get("error", error)
        assert error["code"] == 503
        assert "ray:two/CPU" in error["message"] or "ray:one/CPU" in error["message"]
        served.wait(2, server)
        assert server.ok("/completion", **BODY)["content"]


def test_grammars_are_compiled_for_the_model_that_is_open(
    nodes: ToyNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a request that began before goes on later."""
    made, init = list[Instance](), GrammarQueue.__init__

    def noted(self: GrammarQueue, model: Instance) -> None:
        made.append(model)
        init(self, model)

    monkeypatch.setattr(GrammarQueue, "__init__", noted)
    served, body = Served(params()), BODY | {"grammar": 'root ::= "so it is"'}
    with running(served) as server, closing(server.connect()) as client:
        raw = json.dumps(body).encode()
        client.putrequest("POST", "/completion")
        client.putheader("Content-Length", str(len(raw)))
        client.endheaders(raw[:9])
        lose(nodes, 1)
        served.wait(2, server)
        client.send(raw[9:])
        assert client.getresponse().status == 503
        assert server.ok("/completion", **body)["content"] == "so it is"
        assert [model.engine.closed for model in made] == [False]


def test_a_machine_that_is_unknown_at_the_start_is_an_error(nodes: ToyNodes) -> None:
    nodes.nodes = nodes.nodes[:1]
    with pytest.raises(UnknownDeviceError, match="device 'ray:two/CPU': no node has this name"):
        open_served(params(), {})


def test_options_without_lost_devices(nodes: ToyNodes) -> None:
    given = params(tensor_split=(1.0, 3.0), draft_devices=("ray:two/CPU",))
    assert without_lost(given) is given
    with open_served(given.change(draft_devices=()), {}):
        assert without_lost(given) is given
        lose(nodes, 1)
        left = without_lost(given)
    assert left.placement.devices == ("ray:one/CPU",)
    assert left.placement.tensor_split == (1.0,)
    assert left.draft.draft_devices == ("none",)


def test_a_model_that_does_not_fit_any_more_ends_the_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model()
    monkeypatch.setattr(Instance, "losses", property(lambda self: ["ray:two/CPU: it is gone"]))

    def load() -> Instance:
        raise DoesNotFitError([("CPU", 2 << 30, 1 << 30)])

    async def run() -> None:
        await reopen_lost(ServerState(ServerConfig(), model), load)

    monkeypatch.setattr(model.engine, "when_ended", lambda unload: None)  # a fake has no memory
    with pytest.raises(DoesNotFitError, match=r"CPU lacks 1.00 GiB"):
        asyncio.run(run())
    assert model.engine.closed
    assert "ray:two/CPU: it is gone; the model is opened again" in caplog.text


class Link(RouterLink):
    """The link to a router that admits a model once, as it asks for its plan once."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), io.BytesIO(), lambda: None)
        self.n_asked = 0

    def admitted(self, plan_now: Callable[[], ModelPlan]) -> ModelPlan:
        self.n_asked += 1
        assert self.n_asked == 1, "the router does not answer"
        return plan_now()


def test_a_process_of_a_router_opens_its_model_again(
    nodes: ToyNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, used = Link(), list[list[str]]()
    monkeypatch.setattr(serve_models, "link_to_router", lambda: link)
    monkeypatch.setattr(serve_models, "open_params", lambda args: params())

    def run_server(
        config: ServerConfig,
        load: Callable[[], Instance],
        *,
        load_again: Callable[[], Instance],
        **_: object,
    ) -> int:
        for opens in (load, load_again):
            with opens() as model:
                used.append([d.name for d in model.plan.devices if d.n_layers])
            lose(nodes, 0, for_good=False)
        return 0

    monkeypatch.setattr("lamella.server.app.run_server", run_server)
    assert serve_models.serve_member(argparse.Namespace(), ServerConfig(), {}, "socket") == 0
    assert used == [list(NAMES), list(NAMES)]
    assert link.n_asked == 1
