"""Client programs for llama-server's own API: completions, tokens, templates and infill."""

from __future__ import annotations

from typing import Any

from compat_client import GREEDY, PROMPT, SCHEMA, WEATHER, Api, Seen, Target

SHORT: dict[str, Any] = GREEDY | {"prompt": PROMPT, "n_predict": 4}


def completions(target: Target, seen: Seen) -> None:
    """A script that completes texts in all ways."""
    api = Api(target.text)

    def complete(step: str, **fields: object) -> Any:
        return seen.reply(step, api.post("/completion", SHORT | fields))

    seen.reply("completion", api.post("/completion", SHORT), "content-type")
    seen.reply("the alias /completions", api.post("/completions", SHORT))
    complete("a stop string", n_predict=40, stop=["little", "a"])
    complete("tokens as the prompt", prompt=[1, 300, 301])
    complete("a mixed prompt", prompt=["Once", 300, "upon"])
    complete("several prompts", prompt=[PROMPT, "The cat"])
    complete("several choices", n=2)
    complete("n_predict 0", n_predict=0)
    complete("max_tokens", max_tokens=3)
    complete("probabilities", n_probs=3)
    complete("probabilities after the samplers", n_probs=3, post_sampling_probs=True, temperature=1)
    complete("tokens of the text", return_tokens=True)
    complete("chosen fields", response_fields=["content", "timings/predicted_n", "tokens"])
    complete("bias of ids", logit_bias=[[300, 5.0], [301, False]])
    complete("bias of texts", logit_bias=[["the", -2]])
    complete("bias as at OpenAI", logit_bias={"300": 5})
    complete("a grammar", grammar='root ::= "yes" | "no"', n_predict=8)
    complete("a schema", json_schema=SCHEMA, n_predict=200)
    complete("samplers", samplers=["top_k", "temperature"], top_k=5, temperature=0.7)
    complete("letters of samplers", samplers="kt", top_k=5)
    complete("mirostat", mirostat=2, temperature=0.8)
    complete("all sampling fields", **_SAMPLING)
    complete("null is absent", top_k=None, stop=None, grammar=None)
    complete("cache off", cache_prompt=False, id_slot=0)
    complete("adapters", lora=[{"id": 0, "scale": 0.5}])


_SAMPLING: dict[str, Any] = {
    **{"temperature": 0.9, "dynatemp_range": 0.1, "dynatemp_exponent": 1.1, "top_k": 30},
    **{"top_p": 0.9, "min_p": 0.02, "typical_p": 0.98, "top_n_sigma": 3, "min_keep": 1},
    **{"xtc_probability": 0.1, "xtc_threshold": 0.2, "repeat_last_n": 32, "repeat_penalty": 1.1},
    **{"presence_penalty": 0.1, "frequency_penalty": 0.1, "dry_multiplier": 0.5, "dry_base": 1.7},
    **{"dry_allowed_length": 2, "dry_penalty_last_n": 64, "dry_sequence_breakers": ["\n"]},
    **{"ignore_eos": True, "n_keep": 1, "n_discard": 0, "t_max_predict_ms": 10_000},
}


def streams(target: Target, seen: Seen) -> None:
    """A script that reads server-sent events."""
    api = Api(target.text)
    stream = SHORT | {"stream": True}
    seen.stream("stream", api.post("/completion", stream))
    more = {"timings_per_token": True, "return_progress": True, "n_probs": 2, "cache_prompt": False}
    seen.stream("stream with all", api.post("/completion", stream | more))
    seen.stream("stream of tokens", api.post("/completion", stream | {"return_tokens": True}))
    failed = api.post("/completion", stream | {"grammar": "no grammar"})
    seen.reply("an error before the first token", failed, "content-type")


def resumed(target: Target, seen: Seen) -> None:
    """A page that comes back to its stream."""
    api, where = Api(target.text), "/v1/stream?conv_id=compat"
    header = {"X-Conversation-Id": "compat"}
    whole = api.post("/completion", SHORT | {"stream": True}, **header)
    seen.stream("stream", whole)
    again = api.get(where)
    seen.add("the same again", {"status": again.status_code, "type": again.text == whole.text})
    rest = api.get(f"{where}&from=20")
    seen.add("from a byte on", {"status": rest.status_code, "type": rest.text == whole.text[20:]})
    lookup = {"conversation_ids": ["compat", "other"]}
    seen.reply("lookup", api.post("/v1/streams/lookup", lookup))
    seen.reply("lookup of nothing", api.post("/v1/streams/lookup", {}))
    seen.reply("end", api.send("DELETE", where))
    seen.reply("end again", api.send("DELETE", where))
    seen.reply("gone", api.get(where))
    seen.reply("no name", api.get("/v1/stream"))


def tokens(target: Target, seen: Seen) -> None:
    """A script that counts tokens and looks at prompts."""
    api = Api(target.text)

    def post(step: str, path: str, **body: object) -> Any:
        return seen.reply(step, api.post(path, body))

    found = post("tokenize", "/tokenize", content=PROMPT)
    post("with a special token", "/tokenize", content=PROMPT, add_special=True)
    post("special tokens as text", "/tokenize", content="<|im_start|>", parse_special=False)
    post("with pieces", "/tokenize", content="é", with_pieces=True)
    post("nothing to tokenize", "/tokenize")
    post("detokenize", "/detokenize", tokens=found["tokens"])
    post("no tokens", "/detokenize", tokens=[])
    messages = [{"role": "user", "content": "hi"}]
    post("apply-template", "/apply-template", messages=messages)
    post("apply-template with tools", "/apply-template", messages=messages, tools=[WEATHER])
    path = "/v1/chat/completions/input_tokens"
    post("tokens of a chat", path, messages=messages)
    post("tokens of messages", "/v1/messages/count_tokens", messages=messages)
    post("tokens of responses", "/v1/responses/input_tokens", input="hi")


def infill(target: Target, seen: Seen) -> None:
    """An editor that fills in code."""
    api = Api(target.text)
    code = {"input_prefix": "def f(", "input_suffix": "    return 1\n", "n_predict": 4} | GREEDY
    seen.reply("infill", api.post("/infill", code))
    extra = [{"filename": "a.py", "text": "x = 1\n"}]
    more = {"input_extra": extra, "prompt": "a", "n_indent": 1}
    seen.reply("with files", api.post("/infill", code | more))
    seen.stream("streamed", api.post("/infill", code | {"stream": True}))
    seen.reply("without a suffix", api.post("/infill", {"input_prefix": "a", "n_predict": 2}))
    seen.reply("a wrong file", api.post("/infill", code | {"input_extra": [{"text": 1}]}))


def vectors(target: Target, seen: Seen) -> None:
    """A script that embeds texts with both APIs."""
    api = Api(target.vectors, "sk-compat")

    def post(step: str, path: str, **body: object) -> Any:
        return seen.reply(step, api.post(path, body))

    post("native", "/embedding", content="the cat")
    post("native, several", "/embeddings", content=["the cat", "a dog"])
    post("native, tokens", "/embedding", content=[1, 300, 301])
    post("openai", "/v1/embeddings", input="the cat", model="any")
    post("openai, several", "/v1/embeddings", input=["the cat", "a dog"])
    post("openai, lists of tokens", "/v1/embeddings", input=[[300], [301, 302]])
    post("base64", "/v1/embeddings", input="the cat", encoding_format="base64")
    post("without a norm", "/v1/embeddings", input="the cat", embd_normalize=-1)
    post("nothing to embed", "/v1/embeddings")
    post("a wrong format", "/v1/embeddings", input="a", encoding_format="hex")
    post("no reranker", "/v1/rerank", query="a", documents=["b"])
    post("no completion", "/completion", prompt="a", n_predict=1)
    bare = Api(target.vectors)
    seen.reply("without a key", bare.post("/v1/embeddings", {"input": "a"}))
    seen.reply("with a wrong key", Api(target.vectors, "wrong").get("/props"))
    seen.reply("the other header", bare.get("/v1/models", **{"X-Api-Key": "sk-compat"}))
    seen.reply("health needs no key", bare.get("/health"))
    seen.reply("models need a key", bare.get("/v1/models"))
