"""Client programs that watch and steer a server: states, slots, adapters, metrics and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from compat_client import GREEDY, PROMPT, Api, Seen, Target
from prometheus_client.parser import text_string_to_metric_families

ORIGIN: Final = "http://localhost:3000"


def states(target: Target, seen: Seen) -> None:
    """A supervisor that looks at a server."""
    api = Api(target.text)
    api.post("/completion", GREEDY | {"prompt": PROMPT, "n_predict": 2})
    for path in ("/health", "/v1/health", "/props", "/models", "/v1/models", "/slots"):
        seen.reply(path, api.get(path))
    seen.reply("a free slot", api.get("/slots?fail_on_no_slot=1"))
    with api.streamed("/completion", {"prompt": PROMPT, "n_predict": 500, "ignore_eos": True}):
        seen.reply("/slots beside a request", api.get("/slots"))
    seen.reply("POST /props", api.post("/props", {}))


def slots(target: Target, seen: Seen) -> None:
    """A script that keeps prompts on disk."""
    api = Api(target.text)
    api.post("/completion", GREEDY | {"prompt": PROMPT, "n_predict": 2, "id_slot": 0})
    name = {"filename": "compat.bin"}
    seen.reply("save", api.post("/slots/0?action=save", name))
    seen.reply("erase", api.post("/slots/0?action=erase", {}))
    seen.reply("restore", api.post("/slots/0?action=restore", name))
    seen.reply("a missing file", api.post("/slots/0?action=restore", {"filename": "no.bin"}))
    seen.reply("a wrong name", api.post("/slots/0?action=save", {"filename": "../a"}))
    seen.reply("no name", api.post("/slots/0?action=save", {}))
    seen.reply("a wrong action", api.post("/slots/0?action=burn", name))
    seen.reply("a wrong slot", api.post("/slots/99?action=erase", {}))
    seen.reply("no number", api.post("/slots/a?action=erase", {}))


def adapters(target: Target, seen: Seen) -> None:
    """A script that sets the scales of adapters."""
    api = Api(target.text)
    seen.reply("list", api.get("/lora-adapters"))
    seen.reply("set", api.post("/lora-adapters", [{"id": 0, "scale": 0.5}]))
    seen.reply("list after it", api.get("/lora-adapters"))
    seen.reply("set to none", api.post("/lora-adapters", []))
    seen.reply("an unknown id", api.post("/lora-adapters", [{"id": 9, "scale": 1}]))
    seen.reply("no list", api.post("/lora-adapters", {"id": 0}))
    api.post("/lora-adapters", [{"id": 0, "scale": 1.0}])


def metrics(target: Target, seen: Seen) -> None:
    """Prometheus: its own parser reads the names, types and labels."""
    reply = Api(target.text).get("/metrics")
    families = {
        family.name: {"type": family.type, "value": [sample.value for sample in family.samples]}
        for family in text_string_to_metric_families(reply.text)
        if family.name.startswith("llamacpp:")
    }
    start = reply.headers.get("process-start-time-unix", "")
    media = reply.headers["content-type"].split(";")[0]
    head = {"status": reply.status_code, "media": {"type": media}, "started": start.isdigit()}
    seen.add("metrics", head | {"metrics": families})


def errors(target: Target, seen: Seen) -> None:
    """A script that reads errors."""
    api = Api(target.text)
    chat = "/v1/chat/completions"
    hi = [{"role": "user", "content": "hi"}]
    rows: Mapping[str, tuple[str, Any]] = {
        "no prompt": ("/completion", {"n_predict": 1}),
        "a wrong type": ("/completion", {"prompt": PROMPT, "n_predict": "many"}),
        "a wrong prompt": ("/completion", {"prompt": {"a": 1}}),
        "broken JSON": ("/completion", b'{"prompt": '),
        "a list as the body": ("/completion", [1]),
        "too long": ("/completion", {"prompt": PROMPT * 2000, "n_predict": 1}),
        "a broken grammar": ("/completion", {"prompt": "a", "grammar": "root ::= ("}),
        "a broken schema": ("/completion", {"prompt": "a", "json_schema": {"type": "x"}}),
        "a wrong sampler": ("/completion", {"prompt": "a", "n_predict": 1, "samplers": [1]}),
        "an unknown adapter": ("/completion", {"prompt": "a", "lora": [{"id": 9, "scale": 1}]}),
        "a token that is not there": ("/completion", {"prompt": [999_999], "n_predict": 1}),
        "no messages": (chat, {}),
        "messages of a wrong type": (chat, {"messages": "hi"}),
        "a role that is missing": (chat, {"messages": [{"content": "hi"}]}),
        "a wrong response_format": (chat, {"messages": hi, "response_format": {"type": "x"}}),
        "a wrong tool_choice": (chat, {"messages": hi, "tool_choice": "some", "tools": []}),
        "grammar and tools": (chat, {"messages": hi, "grammar": "root ::= [a]", "tools": [{}]}),
        "an image": (chat, {"messages": [{"role": "user", "content": [_IMAGE]}]}),
        "no such stored response": (
            "/v1/responses",
            {"input": "hi", "previous_response_id": "resp_1"},
        ),
        "embeddings": ("/v1/embeddings", {"input": "a"}),
        "rerank": ("/rerank", {"query": "a", "documents": ["b"]}),
        "speech": ("/v1/audio/transcriptions", {}),
        "an unknown path": ("/nowhere", {}),
        "control of nothing": (f"{chat}/control", {"id": "x", "action": "reasoning_end"}),
    }
    for step, (path, body) in rows.items():
        seen.reply(step, api.post(path, body))
    seen.reply("an unknown GET", api.get("/nowhere"))
    seen.reply("GET of a POST", api.get("/completion"))


_IMAGE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def pages(target: Target, seen: Seen) -> None:
    """What a browser asks before a page of another origin may call the server."""
    api = Api(target.text)
    names = [f"access-control-allow-{name}" for name in ("origin", "credentials")]
    seen.reply("a page of this machine", api.get("/v1/models", Origin=ORIGIN), *names)
    wanted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    reply = api.send("OPTIONS", "/v1/chat/completions", Origin=ORIGIN, **wanted)
    methods = reply.headers.get("access-control-allow-methods", "")
    found = {name: {"type": reply.headers.get(name, "absent")} for name in names}
    found |= {"posts": {"type": "POST" in methods}, "ok": {"type": reply.status_code < 300}}
    seen.add("preflight", found)
    other = api.get("/v1/models", Origin="https://example.com")
    seen.reply("a page of the internet", other, *names)
