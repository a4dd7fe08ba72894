"""Texts between a prefix and a suffix: POST /infill, and `suffix` of completions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_world import RunningServer, running
from scripted import open_scripted

P, S, M = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
REPO, FILE = "<|repo_name|>", "<|file_sep|>"
ANSWER = "    b = 2\n    c = 3\nd = 4\n"


class Played:
    """A server that records the prompts that its model gets."""

    def __init__(self, server: RunningServer, prompts: list[str]) -> None:
        self.server, self._prompts = server, prompts

    def prompt(self, path: str, **body: object) -> str:
        """The prompt of a request, without its BOS."""
        self.server.ok(path, **body, n_predict=3)
        return self._prompts[-1].removeprefix("<s>").lstrip(" ")


def played(folder: Path, special: list[str], **options: Any) -> Iterator[Played]:
    prompts: list[str] = []

    def play(prompt: str) -> str:
        prompts.append(prompt)
        return ANSWER

    def load() -> Any:
        return open_scripted(folder, play, special=special, n_ctx=1024, n_batch=256, **options)

    with running(load) as server:
        yield Played(server, prompts)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    yield from played(tmp_path_factory.mktemp("model"), [P, S, M])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    yield from played(tmp_path_factory.mktemp("model"), [P, S, M, REPO, FILE])


def test_the_prompt_has_prefix_and_suffix(plain: Played) -> None:
    found = plain.prompt("/infill", input_prefix="ab", input_suffix="cd")
    assert found == f"{P}ab{S}cd{M}"
    found = plain.prompt("/infill", input_prefix="ab", input_suffix="", prompt="xy")
    assert found == f"{P}abxy{S}{M}"


def test_other_texts_come_first(plain: Played, files: Played) -> None:
    extra = [{"text": "one", "filename": "a.py"}, {"text": "two"}]
    body = {"input_prefix": "ab", "input_suffix": "cd", "input_extra": extra}
    snippet = "\n\n--- snippet ---\n\n"
    assert plain.prompt("/infill", **body).endswith(f"{P}ab{S}cd{M}")
    assert f"{snippet}one{snippet}two" in plain.prompt("/infill", **body)
    found = files.prompt("/infill", **body)
    begin = f"{REPO}myproject\n{FILE}a.py\none{FILE}tmp\ntwo{FILE}filename\n"
    assert found.replace("<s>", "") == f"{begin}{P}ab{S}cd{M}"


def test_a_name_of_a_special_token_in_a_text_is_text(plain: Played) -> None:
    vocab = plain.server.model.vocab
    body = {"input_prefix": f"a{M}", "input_suffix": f"{P}", "n_predict": 1}
    n = plain.server.ok("/infill", **body)["tokens_evaluated"]
    texts = (f"a{M}", P)
    expected = sum(len(vocab.tokenize(text, add_special=False)) for text in texts) + 3
    assert n == expected + 1  # BOS


def test_long_texts_are_cut_around_the_middle(plain: Played) -> None:
    before, after = "a b c d " * 100 + "END", "BEGIN" + " e f g h" * 100
    found = plain.prompt("/infill", input_prefix=before, input_suffix=after)
    prefix, _, rest = found.partition(S)
    suffix = rest.removesuffix(M)
    assert before.endswith(prefix.removeprefix(P).lstrip()) and len(prefix) < len(before)
    assert after.startswith(suffix) and len(suffix) < len(after)
    evaluated = plain.server.ok("/infill", input_prefix=before, input_suffix=after, n_predict=1)
    assert 200 < evaluated["tokens_evaluated"] <= 256 + 4


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_completion_with_a_suffix(plain: Played, path: str) -> None:
    assert plain.prompt(path, prompt="ab", suffix="cd") == f"{P}ab{S}cd{M}"
    assert plain.prompt(path, prompt="ab", suffix="") == "ab"
    reply = plain.server.ok("/api/generate", prompt="ab", suffix="cd", stream=False)
    assert reply["response"] == ANSWER and "context" not in reply
    shown = plain.server.ok("/api/show", model=plain.server.model.alias)
    assert "insert" in shown["capabilities"]


def test_the_suffix_may_come_first(tmp_path: Path) -> None:
    for one in played(tmp_path, [P, S, M], spm_infill=True):
        found = one.prompt("/infill", input_prefix="ab", input_suffix="cd", prompt="x")
        assert found == f"{S}cd{P}abx{M}"


def test_the_infill_sampler(plain: Played) -> None:
    body = {"input_prefix": "ab", "input_suffix": "", "samplers": ["top_k", "infill"]}
    assert plain.server.ok("/infill", **body)["content"] == ANSWER
    assert plain.server.ok("/infill", **body, grammar="root ::= [^z]*")["content"] == ANSWER


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_with_less_indentation_ends_the_text(plain: Played, stream: bool) -> None:
    body = {"input_prefix": "ab", "input_suffix": "", "n_indent": 4, "stream": stream}
    reply = plain.server.post("/infill", body)
    whole = reply.events[-1] if stream else reply.json
    text = "".join(event["content"] for event in reply.events) if stream else whole["content"]
    assert (text, whole["stop_type"]) == ("    b = 2\n    c = 3\n", "limit")
    assert (
        plain.server.ok("/infill", **body | {"n_indent": 0, "stream": False})["content"] == ANSWER
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"input_suffix": ""}, '"input_prefix" is missing'),
        ({"input_prefix": ""}, '"input_suffix" is missing'),
        ({"input_prefix": 3, "input_suffix": ""}, '"input_prefix" must be a valid string'),
        ({"input_prefix": "", "input_suffix": "", "input_extra": 3}, '"input_extra"'),
        (
            {"input_prefix": "", "input_suffix": "", "input_extra": [{"text": 3}]},
            '"input_extra[0].text"',
        ),
        ({"input_prefix": "", "input_suffix": "", "input_extra": [{}] * 2000}, '"input_extra"'),
        ({"input_prefix": "", "input_suffix": "", "n_indent": -1}, '"n_indent"'),
        ({"input_prefix": "", "input_suffix": "", "prompt": {}}, '"prompt"'),
        ({"input_prefix": "", "input_suffix": "", "prompt": [10**6]}, "1000000"),
    ],
)
def test_bad_input(plain: Played, body: dict[str, Any], message: str) -> None:
    error = plain.server.post("/infill", body).error
    assert error["code"] == 400 and message in error["message"]


def test_other_texts_belong_to_infill(plain: Played) -> None:
    error = plain.server.post("/completion", {"prompt": "a", "input_extra": [{"text": "b"}]}).error
    assert error["code"] == 400 and "input_extra" in error["message"]


def test_a_vocabulary_without_the_tokens() -> None:
    with running() as server:
        for path, body in (
            ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
            ("/v1/completions", {"prompt": "a", "suffix": "b"}),
        ):
            error = server.post(path, body).error
            assert (error["code"], error["type"]) == (501, "not_supported_error")
            assert '"fake" cannot generate the text before a suffix' in error["message"]
