"""Writes a network as a GGUF file for Lamella and llama.cpp.

The file has weights, vocabulary, chat template and license. Matrices are F32 or quantized; norms
are always F32. Tested by tests/recipe/test_export.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize
from net_shape import Shape
from vocabulary import BOS, END, EOS, TEMPLATE, UNK, Pieces

NAME: Final = "Lamella Stories"
VERSION: Final = "1.0"
DESCRIPTION: Final = (
    "A small model that comes with Lamella: it tells children's stories, talks about them, and "
    "answers simple questions. Trained from models/recipe on text that a program wrote."
)
TEMPERATURE: Final = 0.5  # recommended: below 0.8 for questions, and enough for stories
TYPES: Final = {
    "F32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "Q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
}

Weights = Mapping[str, npt.NDArray[np.float32]]


def write_gguf(path: Path, shape: Shape, weights: Weights, pieces: Pieces, type: str) -> None:
    """Write the file as a whole: after an interruption it does not exist.

    Args:
        path: the file.
        shape: sizes of the network.
        weights: weights by their names in `Net`: `token_embd`, `blk.0.attn_q`, ...
        pieces: the vocabulary.
        type: type of the matrices, one of `TYPES`.
    """
    matrix_type, file_type = TYPES[type]
    part = path.with_suffix(".part")
    writer = GGUFWriter(part, "llama")
    _write_general(writer, sum(w.size for w in weights.values()), file_type)
    _write_shape(writer, shape)
    _write_vocabulary(writer, pieces)
    for name, weight in weights.items():
        of = matrix_type if weight.ndim == 2 else GGMLQuantizationType.F32
        data = np.ascontiguousarray(weight, np.float32)
        if of is not GGMLQuantizationType.F32:
            data = quantize(data, of)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)


def _write_general(writer: GGUFWriter, n_weights: int, file_type: LlamaFileType) -> None:
    writer.add_type("model")
    writer.add_name(NAME)
    writer.add_basename("lamella-stories")
    writer.add_version(VERSION)
    writer.add_size_label(f"{n_weights / 1e6:.1f}M")
    writer.add_description(DESCRIPTION)
    writer.add_author("the authors of Lamella")
    writer.add_license("mit")
    writer.add_license_name("MIT License")
    writer.add_languages(["en"])
    writer.add_tags(["text-generation", "stories", "chat"])
    writer.add_sampling_temp(TEMPERATURE)
    writer.add_file_type(file_type)
    if file_type is not LlamaFileType.ALL_F32:
        writer.add_quantization_version(2)


def _write_shape(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_vocab_size(shape.n_vocab)


def _write_vocabulary(writer: GGUFWriter, pieces: Pieces) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces.texts)
    writer.add_token_scores(pieces.scores)
    writer.add_token_types(pieces.types)
    writer.add_unk_token_id(UNK)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)
