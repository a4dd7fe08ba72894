"""Options that replace values of a model file's metadata."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_models import TINY, write_model

from lamella.base.errors import ModelFileError, RequestError
from lamella.model.arch import open_architecture
from lamella.model.gguf import open_gguf
from lamella.model.hparams import Rope
from lamella.model.metadata_params import MetadataParams, metadata_overrides, parse_metadata
from lamella.runtime.open import open_instance
from lamella.runtime.params import OpenParams


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(TINY["llama"], path)
    return path


def rope(model: Path, params: MetadataParams) -> Rope:
    with open_gguf(model, overrides=metadata_overrides(params)) as file:
        found = open_architecture(file).hp.layers[0].rope
    assert found is not None
    return found


def test_rope_options_replace_the_file_s_values(model: Path) -> None:
    plain = rope(model, MetadataParams())
    assert (plain.freq_base, plain.freq_scale, plain.ext_factor) == (10000.0, 1.0, 0.0)
    linear = rope(model, MetadataParams(rope_scale=4, rope_freq_base=5000))
    assert (linear.freq_base, linear.freq_scale) == (5000.0, 0.25)
    assert rope(model, MetadataParams(rope_freq_scale=0.5)).freq_scale == 0.5
    none = MetadataParams(rope_scaling="none", rope_scale=4)
    assert rope(model, none).freq_scale == 1.0
    yarn = rope(
        model,
        MetadataParams(
            rope_scaling="yarn",
            rope_scale=2,
            yarn_orig_ctx=77,
            yarn_attn_factor=1.5,
            yarn_ext_factor=0.5,
            yarn_beta_fast=16,
            yarn_beta_slow=2,
        ),
    )
    assert yarn == Rope(16, 10000.0, 0.5, 0.5, 1.5, 16.0, 2.0, 77)


def test_llama_cpp_s_words_for_the_file_s_values(model: Path) -> None:
    params = MetadataParams(
        rope_freq_base=0, rope_scale=0, yarn_orig_ctx=0, yarn_ext_factor=-1, yarn_beta_fast=-1
    )
    assert metadata_overrides(params) == {}
    assert rope(model, params) == rope(model, MetadataParams())


def test_no_extrapolation_is_a_value(model: Path) -> None:
    params = MetadataParams(rope_scaling="yarn", rope_scale=2, yarn_ext_factor=0)
    assert rope(model, params).ext_factor == 0.0
    with pytest.raises(ModelFileError, match=r"attn_factor is 0.0: must be above 0"):
        rope(model, MetadataParams(yarn_attn_factor=0))


def test_a_key_that_nothing_reads(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = {"llama.contxt_length": 5, "llama.rope.freq_base": 9.0, "general.name": "x"}
    given = {"path": model, "devices": ("none",), "override_kv": pairs}
    with open_instance(OpenParams.make(given)):
        pass
    texts = [record.getMessage() for record in caplog.records if "override" in record.getMessage()]
    assert texts == ["override_kv: the file has no key llama.contxt_length, and nothing reads it"]


def test_other_keys(model: Path) -> None:
    pairs = parse_metadata("llama.context_length=int:4096,new.flag=bool:true,a.b=str:c:d")
    pairs += parse_metadata("new.float=float:0.5")
    with open_gguf(model) as file:
        stored = dict(file.metadata)
    with open_gguf(model, overrides=metadata_overrides(MetadataParams(override_kv=pairs))) as file:
        metadata = file.metadata
        assert open_architecture(file).hp.n_ctx_train == 4096
        assert (metadata.bool("new.flag"), metadata.str("a.b")) == (True, "c:d")
        assert metadata.float("new.float") == 0.5
        assert [*metadata] == [*stored, "new.flag", "a.b", "new.float"]
        assert len(metadata) == len(stored) + 3
        assert metadata.str("general.architecture") == "llama"


def test_an_override_of_a_wrong_type(model: Path) -> None:
    wrong = {"llama.context_length": "x"}
    with (
        open_gguf(model, overrides=wrong) as file,
        pytest.raises(ModelFileError, match="length' is the STRING 'x', must be an integer"),
    ):
        open_architecture(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "'a': must be like llama.context_length=int:4096, with a type of int, float, bool"),
        ("a=int", "'a=int': must be like"),
        ("a=u8:3", "'a=u8:3': must be like"),
        ("a=int:x", "'a=int:x': 'x' is not a value of type int"),
        ("a=bool:x", "'a=bool:x': 'x' is not a value of type bool"),
    ],
)
def test_invalid_texts(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_metadata(text)


def test_values_of_python() -> None:
    assert MetadataParams(override_kv={"a": 1}).override_kv == (("a", 1),)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="override_kv: 'a' is None"):
        MetadataParams(override_kv=(("a", None),))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="override_kv is 3: must be keys and values"):
        MetadataParams(override_kv=3)  # type: ignore[arg-type]


def test_a_model_is_opened_with_other_values(model: Path) -> None:
    pairs = {"llama.context_length": 96, "tokenizer.chat_template": "{{ messages[0].content }}"}
    given = {"path": model, "devices": ("none",), "n_ctx": 0, "override_kv": pairs}
    with open_instance(OpenParams.make(given)) as opened:
        assert opened.n_ctx == opened.plan.n_ctx_train == 96
        assert opened.chat.source == pairs["tokenizer.chat_template"]
