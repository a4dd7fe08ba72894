"""scripts/compare-vocab: equal vocabularies, differences, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from lamella.model.vocab.compare import HARD_TEXTS, N_RANDOM, main

TOKENS = ["[UNK]", "[CLS]", "[SEP]", "▁a", "▁b", "b", "▁!"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    writer = GGUFWriter(tmp_path / "vocab.gguf", "bert")
    writer.add_tokenizer_model("bert")
    writer.add_token_list(TOKENS)
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(tmp_path / "vocab.gguf")


def own(folder: Path, lowercase: bool = True, special: bool = True) -> str:
    """Write the model's own tokenizer. Return its path."""
    vocab = dict(zip(["[UNK]", "[CLS]", "[SEP]", "a", "b", "##b", "!"], range(7), strict=True))
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    if special:
        tokenizer.post_processor = BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def test_equal_vocabularies(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([model, own(tmp_path)]) == 0
    first, last = capsys.readouterr().out.splitlines()
    assert first == "tokens: 7 in the file, 7 in tokenizer.json"
    assert last.startswith(f"{N_RANDOM + len(HARD_TEXTS)} texts of ")
    assert last.endswith(" bytes: none differ")


def test_the_first_different_ids_of_a_text_are_shown(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a ab!\n\nab Ab\nb\n\n\nB", "utf-8")
    assert main([model, own(tmp_path, lowercase=False), str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "at character 3 of 10: 'ab Ab\\nb\\n\\n\\n'",
        "  file  3 '▁a'  5 'b'  4 '▁b'",
        "  own   0 '[UNK]'  4 'b'",
        "at character 0 of 1: 'B'",
        "  file  4 '▁b'",
        "  own   0 '[UNK]'",
        "3 texts of 18 bytes: 2 differ",
    ]
    assert main([model, own(tmp_path, lowercase=False), str(file), "--show", "0"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_other_special_tokens_are_a_difference(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([model, own(tmp_path, special=False)]) == 1
    assert "with special tokens 'a' is [1, 3, 2] in the file, [3]" in capsys.readouterr().out


def test_files_that_cannot_be_read_are_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none.gguf"), own(tmp_path)]) == 2
    assert "none.gguf" in capsys.readouterr().err
    assert main([model, model]) == 2
    assert main([model, own(tmp_path), str(tmp_path / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main([model, str(tmp_path / "tokenizer.json")]) == 2
    assert "tokenizer.json: " in capsys.readouterr().err
