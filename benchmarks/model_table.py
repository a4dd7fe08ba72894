"""Prints the table of docs/guide/models.md: file size and memory of well-known models.

    .venv/bin/python benchmarks/model_table.py

For each model it writes a file without weights, with the sizes and tensor types of the published
one (llama-quantize's Q4_K_M), and plans it on the CPU. It downloads and loads nothing. The types
follow llama.cpp's `llama_tensor_get_type`. Tested by tests/model/test_model_table.py.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final, NamedTuple

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from make_model import vocabulary
from weight_types import Type, has_more_bits, type_of

from lamella.cli.main import main as lamella

N_CTX: Final = (8192, 32768)  # default contexts: of `run` and `chat`, and of `serve`
GIB: Final = 1 << 30


class Model(NamedTuple):
    """Sizes of a published model, from its config.json. `n_ff` is that of one expert."""

    repo: str
    arch: str
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx: int
    tied: int  # 1: the output weights are the embeddings
    n_expert: int
    n_expert_used: int


class Tensor(NamedTuple):
    name: str
    ne: tuple[int, ...]
    type: Type

    @property
    def row_bytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.type]
        return self.ne[0] // block * size

    @property
    def n_bytes(self) -> int:
        return self.row_bytes * int(np.prod(self.ne[1:]))


_TABLE: Final = """\
repository arch n_embd n_ff n_layer n_head n_head_kv head_dim n_vocab n_ctx tied n_expert used
unsloth/SmolLM2-135M-Instruct-GGUF llama 576 1536 30 9 3 64 49152 8192 1 0 0
bartowski/Qwen2.5-0.5B-Instruct-GGUF qwen2 896 4864 24 14 2 64 151936 32768 1 0 0
bartowski/Llama-3.2-1B-Instruct-GGUF llama 2048 8192 16 32 8 64 128256 131072 1 0 0
bartowski/SmolLM2-1.7B-Instruct-GGUF llama 2048 8192 24 32 32 64 49152 8192 1 0 0
unsloth/Qwen3-1.7B-GGUF qwen3 2048 6144 28 16 8 128 151936 40960 1 0 0
bartowski/Qwen2.5-3B-Instruct-GGUF qwen2 2048 11008 36 16 2 128 151936 32768 1 0 0
bartowski/Llama-3.2-3B-Instruct-GGUF llama 3072 8192 28 24 8 128 128256 131072 1 0 0
unsloth/Qwen3-4B-GGUF qwen3 2560 9728 36 32 8 128 151936 40960 1 0 0
bartowski/Mistral-7B-Instruct-v0.3-GGUF llama 4096 14336 32 32 8 128 32768 32768 0 0 0
bartowski/Qwen2.5-7B-Instruct-GGUF qwen2 3584 18944 28 28 4 128 152064 32768 0 0 0
bartowski/Meta-Llama-3.1-8B-Instruct-GGUF llama 4096 14336 32 32 8 128 128256 131072 0 0 0
unsloth/Qwen3-8B-GGUF qwen3 4096 12288 36 32 8 128 151936 40960 0 0 0
unsloth/Qwen3-14B-GGUF qwen3 5120 17408 40 40 8 128 151936 40960 0 0 0
bartowski/Mistral-Small-24B-Instruct-2501-GGUF llama 5120 32768 40 32 8 128 131072 32768 0 0 0
unsloth/Qwen3-30B-A3B-GGUF qwen3moe 2048 768 48 32 4 128 151936 40960 0 128 8
unsloth/Qwen3-32B-GGUF qwen3 5120 25600 64 64 8 128 151936 40960 0 0 0
bartowski/Llama-3.3-70B-Instruct-GGUF llama 8192 28672 80 64 8 128 128256 131072 0 0 0
"""


def _models() -> Iterator[Model]:
    for line in _TABLE.splitlines()[1:]:
        repo, arch, *sizes = line.split()
        yield Model(repo, arch, *map(int, sizes))


MODELS: Final = tuple(_models())


# --- tensors ---


def tensors(model: Model) -> Iterator[Tensor]:
    n_embd, n_vocab = model.n_embd, model.n_vocab
    yield _matrix("token_embd", (n_embd, n_vocab), Type.Q6_K if model.tied else Type.Q4_K)
    yield _vector("output_norm.weight", n_embd)
    if not model.tied:
        yield _matrix("output", (n_embd, n_vocab), Type.Q6_K)
    for il in range(model.n_layer):
        yield from _attention(model, il)
        yield from _feed_forward(model, il)


def _attention(model: Model, il: int) -> Iterator[Tensor]:
    blk, n_embd = f"blk.{il}.", model.n_embd
    n_q, n_kv = model.head_dim * model.n_head, model.head_dim * model.n_head_kv
    is_70b = model.arch == "llama" and model.n_layer == 80
    fewer_bits = Type.Q5_K if is_70b else Type.Q4_K
    yield _vector(blk + "attn_norm.weight", n_embd)
    yield _matrix(blk + "attn_q", (n_embd, n_q), Type.Q4_K)
    yield _matrix(blk + "attn_k", (n_embd, n_kv), Type.Q4_K)
    v_type = Type.Q6_K if has_more_bits(il, model.n_layer) else fewer_bits
    yield _matrix(blk + "attn_v", (n_embd, n_kv), v_type)
    yield _matrix(blk + "attn_output", (n_q, n_embd), Type.Q4_K)
    if model.arch == "qwen2":
        for name, n in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
            yield _vector(f"{blk}{name}.bias", n)
    if model.arch in ("qwen3", "qwen3moe"):
        yield _vector(blk + "attn_q_norm.weight", model.head_dim)
        yield _vector(blk + "attn_k_norm.weight", model.head_dim)


def _feed_forward(model: Model, il: int) -> Iterator[Tensor]:
    blk, n_embd, n_ff = f"blk.{il}.", model.n_embd, model.n_ff
    experts, exps = ((model.n_expert,), "_exps") if model.n_expert else ((), "")
    yield _vector(blk + "ffn_norm.weight", n_embd)
    if model.n_expert:
        yield Tensor(blk + "ffn_gate_inp.weight", (n_embd, model.n_expert), Type.F32)
    yield _matrix(f"{blk}ffn_gate{exps}", (n_embd, n_ff, *experts), Type.Q4_K)
    yield _matrix(f"{blk}ffn_up{exps}", (n_embd, n_ff, *experts), Type.Q4_K)
    down = Type.Q6_K if has_more_bits(il, model.n_layer) else Type.Q4_K
    yield _matrix(f"{blk}ffn_down{exps}", (n_ff, n_embd, *experts), down)


def _matrix(name: str, ne: tuple[int, ...], type: Type) -> Tensor:
    return Tensor(f"{name}.weight", ne, type_of(ne, type))


def _vector(name: str, n: int) -> Tensor:
    return Tensor(name, (n,), Type.F32)


def file_size(model: Model) -> int:
    """The bytes of the weights, which are nearly the whole file."""
    return sum(tensor.n_bytes for tensor in tensors(model))


# --- the file and its plan ---


def write_header(model: Model, path: Path) -> None:
    """Write a GGUF file that ends before the weights."""
    writer = gguf.GGUFWriter(path, model.arch)
    _write_metadata(writer, model)
    for tensor in tensors(model):
        # the writer expects the shape of the stored bytes
        stored = (*tensor.ne[:0:-1], tensor.row_bytes)
        kind = np.dtype(np.uint8)
        writer.add_tensor_info(tensor.name, stored, kind, tensor.n_bytes, tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _write_metadata(writer: gguf.GGUFWriter, model: Model) -> None:
    writer.add_context_length(model.n_ctx)
    writer.add_embedding_length(model.n_embd)
    writer.add_block_count(model.n_layer)
    writer.add_feed_forward_length(model.n_ff)
    writer.add_head_count(model.n_head)
    writer.add_head_count_kv(model.n_head_kv)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(model.n_vocab)
    if model.n_expert:
        writer.add_expert_count(model.n_expert)
        writer.add_expert_used_count(model.n_expert_used)
        writer.add_expert_feed_forward_length(model.n_ff)
    tokens, kinds = vocabulary(model.n_vocab)  # a plan depends on their number only
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)


def needed(path: Path, n_ctx: int, n_parallel: int) -> int:
    """The bytes that `lamella plan` counts on the CPU."""
    sizes = ["-dev", "none", "-c", str(n_ctx), "-np", str(n_parallel)]
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        lamella(["plan", str(path), *sizes, "--bandwidth", "CPU=1", "--json"])
    return int(json.loads(out.getvalue())["devices"][-1]["needed"])


def main() -> None:
    print("| repository | file | `run`, `chat` | `serve` |")
    print("|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        for model in MODELS:
            write_header(model, path)
            single, served = (min(model.n_ctx, n) for n in N_CTX)
            sizes = (file_size(model), needed(path, single, 1), needed(path, served, 4))
            cells = " | ".join(f"{n / GIB:.1f} GiB" for n in sizes)
            print(f"| `{model.repo}` | {cells} |", flush=True)


if __name__ == "__main__":
    main()
