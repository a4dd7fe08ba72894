"""benchmarks/make_model.py: files of every type open and decode."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import make_model
import numpy as np
import pytest
from gguf import quants
from make_model import data_of, vocabulary, write_model
from shapes import SHAPES, DeltaNet, Shape, tensors
from weight_types import FLOATS, TYPES, WEIGHTS, Type, type_of

from lamella.base.errors import ModelFileError
from lamella.kernels.cpu.device import CpuDevice
from lamella.model.batch import Batch
from lamella.model.context import Context
from lamella.model.gguf import open_gguf
from lamella.model.loader import load_model
from lamella.model.params import ContextParams
from lamella.model.placement import Placement
from lamella.model.vocab import load_vocab

ALIGNMENT = 32  # bytes
SMALL = Shape(n_embd=256, n_ff=288, n_layer=1, n_head=8, n_head_kv=4, n_vocab=512)


@pytest.mark.parametrize("type", [Type.Q4_0, Type.Q4_K, Type.F16], ids=lambda t: t.name)
def test_models_open_and_decode(type: Type, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    fallen = write_model(SMALL, type, path)
    assert fallen == (["blk.0.ffn_down.weight Q5_0"] if type is Type.Q4_K else [])
    with open_gguf(path) as file:
        vocab = load_vocab(file.metadata)
        assert vocab.n_tokens == SMALL.n_vocab
        assert vocab.detokenize(vocab.tokenize("a bc\n", add_special=False)) == "a bc\n"
        assert (vocab.bos, vocab.eos) == (1, 2)
    assert_decodes(path)


def assert_decodes(path: Path) -> None:
    model = load_model(path, Placement(cpu=CpuDevice(1), devices=()))
    with Context(model, ContextParams(n_ctx=64)) as context:
        seq = context.pool.new_sequence()
        context.append(seq, 16)
        batch = Batch()
        batch.add(list(range(16)), seq, 0, n_outputs=16)
        logits = context.decode(batch)
    model.free()
    assert np.isfinite(logits).all()
    assert 0.5 < logits.std() < 2  # neither all equal nor one certain token


def test_the_vocabulary_of_another_file(tmp_path: Path) -> None:
    source, path = tmp_path / "source.gguf", tmp_path / "model.gguf"
    write_model(replace(SMALL, n_vocab=600), Type.Q4_0, source, header_only=True)
    assert make_model.n_tokens(source) == 600
    write_model(replace(SMALL, n_vocab=600), Type.Q4_0, path, vocab=source)
    with open_gguf(source, header_only=True) as one, open_gguf(path) as other:
        keys = [key for key in one.metadata if key.startswith("tokenizer.")]
        assert keys and keys == [key for key in other.metadata if key.startswith("tokenizer.")]
        assert load_vocab(other.metadata).pieces() == load_vocab(one.metadata).pieces()


@pytest.mark.parametrize("type", TYPES, ids=lambda t: t.name)
def test_activations_stay_near_one(type: Type) -> None:
    ne = (1024, 64)
    data = data_of(ne, type, np.random.default_rng(0))
    values = quants.dequantize(data, type).view(np.float32)
    assert values.shape == (64, 1024)
    assert values.std() * 1024**0.5 == pytest.approx(1, rel=0.05)
    assert abs(values.mean()) * 1024**0.5 < 0.1
    assert len(np.unique(data, axis=0)) == 64  # all rows differ


def test_latent_attention(tmp_path: Path) -> None:
    path, large = tmp_path / "model.gguf", SHAPES["deepseek2-1b"]
    small = replace(large, n_embd=256, n_ff=64, n_ff_dense=128, n_layer=2, n_vocab=512)
    small = replace(small, n_head=4, n_embd_head=96, kv_lora_rank=64, n_rot=32)
    assert write_model(small, Type.Q4_0, path) == []
    model = load_model(path, Placement(cpu=CpuDevice(1), devices=()))
    assert [layer.head_dim_k for layer in model.hp.layers] == [96, 96]
    assert model.hp.n_expert == 16
    model.free()


@pytest.mark.parametrize("tied", [False, True])
def test_delta_nets(tied: bool, tmp_path: Path) -> None:
    path, large = tmp_path / "model.gguf", SHAPES["qwen35-4b"]
    small = replace(large, n_embd=256, n_ff=288, n_layer=4, n_vocab=512, n_ctx=64, tied=tied)
    small = replace(small, n_head=4, n_head_kv=2, n_embd_head=64, n_rot=64)
    small = replace(small, delta=DeltaNet(n_key_head=2, n_head=4, d_state=32))
    assert write_model(small, Type.Q4_0, path) == []
    with open_gguf(path) as file:
        assert "blk.2.ssm_a" in file.tensors and "blk.3.attn_q.weight" in file.tensors
        assert file.tensors["blk.0.ssm_conv1d.weight"].type.name == "F32"
    assert_decodes(path)


def test_models_with_experts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(replace(SMALL, n_expert=4, n_expert_used=2), Type.Q4_0, path)
    model = load_model(path, Placement(cpu=CpuDevice(1), devices=()))
    assert (model.hp.n_expert, model.hp.n_expert_used) == (4, 2)
    assert model.weights["blk.0.ffn_up_exps.weight"].ne == (256, 288, 4, 1)
    model.free()


def test_routers_are_floats_and_experts_alone_are_mxfp4() -> None:
    names = ("ffn_up_exps.weight", "ffn_up_exps.bias", "ffn_gate_inp.weight", "attn_q.weight")
    found = [type_of((64, 32), Type.MXFP4, name, n_expert=4).name for name in names]
    assert found == ["MXFP4", "F32", "F32", "Q8_0"]
    assert type_of((64, 32), Type.MXFP4, "blk.0.attn_q.weight") is Type.MXFP4


def test_a_mix_has_better_types_for_some_matrices() -> None:
    mix, ne, n = WEIGHTS["Q4_K_M"], (256, 32), 16
    found = [type_of(ne, mix, f"blk.{il}.ffn_down.weight", n).name for il in range(n)]
    assert [il for il in range(n) if found[il] == "Q6_K"] == [0, 1, 4, 7, 10, 13, 14, 15]
    assert {found[2], type_of(ne, mix, "blk.0.attn_q.weight", n).name} == {"Q4_K"}
    assert type_of(ne, mix, "output.weight", n) is Type.Q6_K
    assert type_of(ne, mix, "token_embd.weight", n) is Type.Q4_K
    assert type_of((288, 32), mix, "blk.0.ffn_down.weight", n) is Type.Q8_0
    small = [type_of(ne, WEIGHTS["Q3_K_M"], f"blk.{il}.attn_v.weight", n).name for il in (1, 2)]
    assert small == ["Q5_K", "Q4_K"]


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abc"]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        write_model(SMALL, Type.Q4_K, file, seed=seed)
    first, second, other = [file.read_bytes() for file in files]
    assert first == second
    assert first != other


@pytest.mark.parametrize("type", [Type.Q4_K, Type.F32], ids=lambda t: t.name)
def test_a_header_equals_that_of_the_whole_file(type: Type, tmp_path: Path) -> None:
    whole, header = tmp_path / "whole.gguf", tmp_path / "header.gguf"
    fallen = write_model(SMALL, type, whole)
    assert write_model(SMALL, type, header, header_only=True) == fallen
    text = header.read_bytes()
    assert whole.read_bytes().startswith(text)
    with open_gguf(whole) as expected, open_gguf(header, header_only=True) as found:
        assert found.tensors == expected.tensors
        begin = min(info.offset for info in expected.tensors.values())
        assert begin - ALIGNMENT < len(text) <= begin
        assert load_vocab(found.metadata).n_tokens == SMALL.n_vocab
    with pytest.raises(ModelFileError):
        open_gguf(header)


def test_an_interruption_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"an older one")

    def interrupt(ne: tuple[int, ...], *_: object) -> None:
        assert path.read_bytes() == b"an older one"
        raise KeyboardInterrupt

    monkeypatch.setattr(make_model, "data_of", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_model(SMALL, Type.F16, path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"an older one"


def test_shapes_match_their_names() -> None:
    millions = {
        name: sum(int(np.prod(ne)) for _, ne in tensors(shape)) // 10**6
        for name, shape in SHAPES.items()
    }
    dense = {
        "70b": 70549,
        "8b": 8028,
        "1b": 1104,
        "8b-4l": 1921,
        "1b-4l": 374,
        "0.5b": 415,
        "110m": 134,
        "15m": 24,
    }
    experts = {"8x7b": 46702, "gpt-oss-3b": 3477, "moe-3b": 3475, "deepseek2-1b": 1398}
    others = {"gemma3-1b": 734, "phi3-1b": 1004, "granite-1b": 1038}
    hybrids = {"qwen35-1b": 958, "qwen35-4b": 4205}
    encoders = {"bge-small": 33, "bge-base": 108, "bge-large": 334, "nomic": 136}
    others |= {"qwen3-embedding-0.6b": 473, "embeddinggemma-300m": 126}
    assert millions == dense | experts | others | hybrids | encoders
    assert all(shape.n_embd % shape.n_head == 0 for shape in SHAPES.values())


def test_rows_of_partial_blocks_fall_back_as_in_llama_cpp() -> None:
    found = [type_of((288, 4), t).name for t in (Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q4_0)]
    assert found == ["Q5_0", "Q5_1", "Q8_0", "Q4_0"]
    assert type_of((40, 4), Type.Q4_K) is Type.F16
    assert type_of((288,), Type.Q4_K) is Type.F32


def test_vocabularies_have_every_token_once() -> None:
    tokens, kinds = vocabulary(32000)
    assert len(tokens) == len(kinds) == len(set(tokens)) == 32000


def test_the_command(tmp_path: Path) -> None:
    script, path = make_model.__file__, tmp_path / "m.gguf"
    command = [sys.executable, str(script), "--shape", "15m", "--layers", "1", "-o", str(path)]
    command += ["--ctx-train", "131072"]
    done = subprocess.run([*command, "--type", "Q6_K"], capture_output=True, text=True, check=True)
    assert str(path) in done.stdout
    assert "are not whole blocks of Q6_K: token_embd.weight Q8_0" in done.stderr
    with open_gguf(path) as file:
        assert file.metadata.int("llama.block_count") == 1
        assert file.metadata.int("llama.context_length") == 131072
        assert file.tensors["blk.0.ffn_down.weight"].type.name == "Q6_K"
    wrong = subprocess.run([*command, "--type", "Q9"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2


def test_the_command_for_a_header_only(tmp_path: Path) -> None:
    script, path = make_model.__file__, tmp_path / "m.gguf"
    command = [sys.executable, str(script), "--shape", "1b", "--type", "Q4_K", "-o", str(path)]
    done = subprocess.run([*command, "--header-only"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{path}: 0.6 MiB\n"
    with open_gguf(path, header_only=True) as file:
        assert sum(int(np.prod(info.ne)) for info in file.tensors.values()) // 10**6 == 1104


def test_encoders_have_the_special_tokens_of_bert(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_model(SHAPES["bge-small"], Type.Q8_0, path, header_only=True)
    with open_gguf(path, header_only=True) as file:
        tokens = file.metadata.strings("tokenizer.ggml.tokens")
        assert len(tokens) == len(set(tokens)) == SHAPES["bge-small"].n_vocab
        assert tokens[100:104] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        assert {file.tensors[name].type.name for name in FLOATS[1:3]} == {"F32"}
