"""Vocabularies of real files: exact ids, and metadata of wrong types."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gguf import GGUFValueType, GGUFWriter

from lamella.base.errors import ModelFileError
from lamella.model.gguf import open_gguf
from lamella.model.vocab import Vocab, load_vocab

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("LAMELLA_TEST_DATA", ROOT.parent / "shared"))
# llama.cpp's models/ggml-vocab-*.gguf with their .inp and .out, if this is set
LLAMA_CPP = os.environ.get("LAMELLA_TEST_VOCABS")
LLAMA_CPP_FILES = sorted(Path(LLAMA_CPP).glob("ggml-vocab-*.gguf.out")) if LLAMA_CPP else []


@contextmanager
def loaded(path: Path) -> Iterator[Vocab]:
    if not path.exists():
        pytest.skip(f"no {path}: set LAMELLA_TEST_DATA")
    with open_gguf(path) as file:
        yield load_vocab(file.metadata)


@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_llama_vocabularies_return_the_expected_ids_and_texts(kind: str) -> None:
    path = SHARED / "vocab" / f"ggml-vocab-llama-{kind}.gguf"
    with loaded(path) as v:
        texts = Path(f"{path}.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
        lines = Path(f"{path}.out").read_text("utf-8").split("\n")
        assert len(texts) == len(lines)
        for text, line in zip(texts, lines, strict=True):
            ids = v.tokenize(text, add_special=False)
            assert ids == [int(id) for id in line.split()], text
            assert v.detokenize(ids) == text
            stream = v.stream()
            streamed = "".join(map(stream.push, ids)) + stream.flush()
            assert streamed.removeprefix(" " if kind == "spm" else "") == text


@pytest.mark.parametrize("out", LLAMA_CPP_FILES, ids=lambda out: out.name.removesuffix(".gguf.out"))
def test_vocabularies_of_llama_cpp_return_the_expected_ids(out: Path) -> None:
    with loaded(out.with_suffix("")) as v:
        texts = out.with_suffix(".inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
        lines = out.read_text("utf-8").split("\n")
        assert not any(lines[len(texts) :])
        for text, line in zip(texts, lines[: len(texts)], strict=True):
            assert v.tokenize(text, add_special=False) == [int(id) for id in line.split()], text


def test_bert_s_vocabulary_returns_the_expected_ids() -> None:
    path = SHARED / "vocab" / "ggml-vocab-bert-bge.gguf"
    with loaded(path) as v:
        texts = Path(f"{path}.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
        lines = Path(f"{path}.out").read_text("utf-8").split("\n")
        for text, line in zip(texts, lines, strict=True):
            ids = v.tokenize(text, add_special=False)
            assert ids == [int(id) for id in line.split()], text
            if v.unk not in ids:
                assert v.tokenize(v.detokenize(ids), add_special=False) == ids
        assert (v.bos, v.eos, v.sep, v.pad, v.mask, v.unk) == (101, 102, 102, 0, 103, 100)


def test_llama_spm_s_special_tokens() -> None:
    with loaded(SHARED / "vocab" / "ggml-vocab-llama-spm.gguf") as v:
        assert (v.n_tokens, v.bos, v.eos, v.unk) == (32000, 1, 2, 0)
        assert v.eog == {2}
        assert v.tokenize("<s>Hello</s>", add_special=False, parse_special=True) == [1, 15043, 2]
        assert not {1, 2} & set(v.tokenize("<s>Hello</s>", add_special=False))


@pytest.mark.parametrize("name", ["stories260K-F32", "stories260K-Q8_0", "stories260K-Q4_0"])
def test_stories260k_s_prompts_and_texts(name: str) -> None:
    with loaded(SHARED / "models" / f"{name}.gguf") as v:
        golden = json.loads((SHARED / "golden" / f"{name}.json").read_text("utf-8"))
        for case in golden["cases"]:
            assert v.tokenize(case["prompt"]) == case["prompt_tokens"]
            stream = v.stream()
            text = "".join(map(stream.push, case["greedy_tokens"])) + stream.flush()
            assert text == case["greedy_text"]


def test_llama_bpe_s_special_tokens() -> None:
    with loaded(SHARED / "vocab" / "ggml-vocab-llama-bpe.gguf") as v:
        assert (v.n_tokens, v.bos, v.eos, v.unk) == (128256, 128000, 128001, None)
        assert (v.add_bos, v.add_eos, v.eot) == (True, False, 128009)
        assert {v.text(id) for id in v.eog} == {"<|end_of_text|>", "<|eot_id|>"}
        turn = "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
        ids = v.tokenize(turn, parse_special=True)
        assert ids == [128000, 128006, 882, 128007, 271, 9906, 128009]
        assert v.detokenize(ids) == "user\n\nHello"
        assert v.detokenize(ids, special=True) == "<|begin_of_text|>" + turn
        assert not set(ids[1:2] + ids[3:4] + ids[6:]) & set(v.tokenize(turn))


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[GGUFWriter]:
    writer = GGUFWriter(tmp_path / "vocab.gguf", "llama")
    yield writer
    writer.close()


def written(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    return path / "vocab.gguf"


TOKENS = ["<unk>", "<s>", "</s>", "▁", "a"]


def test_a_minimal_file(writer: GGUFWriter, tmp_path: Path) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    with loaded(written(writer, tmp_path)) as v:
        assert v.tokenize("aa") == [1, 3, 4, 4]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", [1, 2, 3]),
        ("scores", ["a", "b", "c", "d", "e"]),
        ("scores", 1.0),
        ("token_type", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("bos_token_id", "1"),
        ("eos_token_id", 2.5),
        ("add_bos_token", 1),
        ("add_space_prefix", "yes"),
        ("model", ["llama"]),
    ],
)
def test_a_key_of_the_wrong_type_is_named(
    writer: GGUFWriter, tmp_path: Path, key: str, value: object
) -> None:
    values: dict[str, object] = {"model": "llama", "tokens": TOKENS, key: value}
    for name, given in values.items():
        writer.add_key_value(f"tokenizer.ggml.{name}", given, GGUFValueType.get_type(given))
    with pytest.raises(ModelFileError, match=key), loaded(written(writer, tmp_path)):
        pass
