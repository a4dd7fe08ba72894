"""A model with a BPE vocabulary, like Llama 3 and Qwen, in the real server and chat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from commands import lamella
from gguf import TokenType
from serving import Server
from tiny_models import Tiny, write_model

from lamella.model.vocab.bpe import BYTES

WORDS = ("H e", "He l", "Hel l", "Hell o", "Ġ w", "Ċ Ċ", "u s", "us e", "use r")
SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TOKENS = [*sorted(BYTES, key=BYTES.__getitem__), *(w.replace(" ", "") for w in WORDS), *SPECIAL]
BOS, HEADER, END_HEADER, EOT = (TOKENS.index(text) for text in SPECIAL)
# the template of Llama 3, without tools and the date
TEMPLATE = (
    "{% for m in messages %}{% set content = '<|start_header_id|>' + m['role'] "
    "+ '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bpe") / "tiny-bpe.gguf"
    metadata = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": TOKENS,
        "token_type": [TokenType.NORMAL] * BOS + [TokenType.CONTROL] * len(SPECIAL),
        "merges": list(WORDS),
        "bos_token_id": BOS,
        "eos_token_id": EOT,
    }
    keys: dict[str, object] = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    tiny = Tiny(arch="llama", n_vocab=len(TOKENS))
    write_model(tiny, file, vocab=False, metadata=keys | {"tokenizer.chat_template": TEMPLATE})
    return file


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    server = Server(path, "-dev", "none")
    yield server
    assert server.stop() == 0


def test_text_and_tokens_over_http(server: Server) -> None:
    tokens = server.post("/tokenize", content="Hello wé\n\n", add_special=True)["tokens"]
    hello, w, newlines = TOKENS.index("Hello"), TOKENS.index("Ġw"), TOKENS.index("ĊĊ")
    assert tokens == [BOS, hello, w, 0xC3, 0xA9, newlines]
    text = server.post("/detokenize", tokens=tokens)["content"]
    assert text == "<|begin_of_text|>Hello wé\n\n"
    pieces = server.post("/tokenize", content="é", with_pieces=True)["tokens"]
    assert pieces == [{"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]


def test_a_chat_has_the_tokens_of_its_template(server: Server) -> None:
    messages = [{"role": "user", "content": "Hello <|eot_id|>"}]
    prompt = server.post("/apply-template", messages=messages)["prompt"]
    tokens = server.post("/tokenize", content=prompt, parse_special=True)["tokens"]
    user, newlines = TOKENS.index("user"), TOKENS.index("ĊĊ")
    assert tokens[:4] == [HEADER, user, END_HEADER, newlines]
    reply = server.post("/v1/chat/completions", messages=messages, max_tokens=8, temperature=0)
    assert reply["usage"]["prompt_tokens"] == len(tokens) + 1  # BOS, once
    plain = server.post("/completion", prompt=[BOS, *tokens], n_predict=8, temperature=0)
    assert reply["choices"][0]["message"]["content"] == plain["content"]


def test_an_end_token_ends_the_text(server: Server) -> None:
    reply = server.post("/v1/completions", prompt="Hello", max_tokens=8, logit_bias={str(EOT): 100})
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["choices"][0]["text"] == ""


def test_half_a_character_becomes_u_fffd(server: Server) -> None:
    half = server.post("/tokenize", content="é")["tokens"][0]
    reply = server.post("/completion", prompt="Hello", n_predict=3, logit_bias={str(half): 100})
    assert reply["content"] == "\N{REPLACEMENT CHARACTER}" * 3


def test_the_vocabulary_type_has_llama_cpp_s_number(server: Server) -> None:
    with urlopen(server.url + "/v1/models", timeout=250) as reply:
        assert json.load(reply)["data"][0]["meta"]["vocab_type"] == 2


def test_run_and_chat(path: Path) -> None:
    flags = ("-m", path, "-dev", "none", "-n", "4", "--temp", "0")
    ended = lamella("run", "-p", "Hello", *flags)
    assert ended.returncode == 0
    assert "prompt: 2 tokens" in ended.stderr
    ended = lamella("chat", *flags, stdin="Hello\n")
    assert ended.returncode == 0
    assert ended.stdout.strip()
