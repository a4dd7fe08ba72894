"""`lamella show`: what a model or a LoRA adapter is, from the header of its file.

Downloads only the header of a model that is not cached. Tested by tests/cli/test_models.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

from ..base.units import size_text
from ..model.adapter_file import AdapterFile, describe_adapter
from ..model.description import ModelDescription, describe_model
from ..model.gguf import open_gguf
from .download import model_name, model_path
from .model_flags import add_model_argument, add_source_flags

MILLION, BILLION = 10**6, 10**9


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    form = group.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--template", action="store_true", help="print the chat template")
    group = parser.add_argument_group("model")
    add_model_argument(group)
    add_source_flags(group)


def main(args: argparse.Namespace) -> int:
    """Describe a model. Return the exit status."""
    path = model_path(args, header_only=True)
    with open_gguf(path, header_only=True) as file:
        if file.metadata.str("general.type", "") == "adapter":
            return _show_adapter(args, describe_adapter(file))
        model = describe_model(file)
    if args.json:
        sys.stdout.write(json.dumps({"path": path, **asdict(model)}) + "\n")
    elif args.template:
        sys.stdout.write(f"{model.chat_template}\n" if model.chat_template else "")
    else:
        sys.stdout.write(f"{model_name(args) or path}\n")  # not the path of a temporary header
        for name, text in _lines(model):
            sys.stdout.write(f"  {name:<14}  {text}\n")
    return 0


def _show_adapter(args: argparse.Namespace, adapter: AdapterFile) -> int:
    facts = {
        "name": adapter.name,
        "architecture": adapter.arch,
        "ranks": adapter.ranks,
        "alpha": adapter.alpha,
        "matrices": len(adapter.pairs),
        "task_name": adapter.task_name,
        "prompt_prefix": adapter.prompt_prefix,
    }
    if args.json:
        path = str(adapter.path)
        sys.stdout.write(json.dumps({"path": path, "type": "adapter", **facts}) + "\n")
    elif not args.template:
        sys.stdout.write(f"{model_name(args) or adapter.path}\n")
        for name, text in _adapter_lines(adapter):
            sys.stdout.write(f"  {name:<14}  {text}\n")
    return 0


def _adapter_lines(adapter: AdapterFile) -> Iterator[tuple[str, str]]:
    yield "kind", "a LoRA adapter: open its model, with --lora FILE"
    if adapter.name:
        yield "name", adapter.name
    yield "architecture", adapter.arch
    yield "rank", f"{', '.join(map(str, adapter.ranks))}, alpha {adapter.alpha or 'not stated'}"
    yield "changes", f"{len(adapter.pairs)} matrices, {size_text(adapter.n_bytes)}"
    if adapter.task_name:
        yield "task", adapter.task_name
    if adapter.prompt_prefix:
        yield "prompt prefix", repr(adapter.prompt_prefix)


def _lines(model: ModelDescription) -> Iterator[tuple[str, str]]:
    if model.name:
        yield "name", model.name
    note = "" if model.is_supported else " (not supported: Lamella cannot run it yet)"
    yield "architecture", model.architecture + note
    yield "parameters", _count(model.n_params)
    yield "quantization", f"{model.quantization}, {size_text(model.n_bytes)} of weights"
    yield "layers", f"{model.n_layers}, of width {model.n_embd}"
    yield "context", f"{model.n_ctx_train} tokens trained"
    yield "vocabulary", f"{model.n_vocab} tokens ({model.vocabulary or 'unknown'})"
    yield from _embedding_lines(model) if model.embeds else _text_lines(model)
    yield "license", model.license or "not stated"


def _embedding_lines(model: ModelDescription) -> Iterator[tuple[str, str]]:
    use = "it scores documents" if model.pooling == "rank" else "it computes embeddings"
    yield "pooling", f"{model.pooling or 'not stated'}: {use}, `lamella embed`"


def _text_lines(model: ModelDescription) -> Iterator[tuple[str, str]]:
    yield "chat template", "yes" if model.chat_template else "no: it continues texts"
    sampling = ", ".join(f"{name} {value}" for name, value in model.sampling.items())
    yield "sampling", sampling or "no recommendation"


def _count(n: int) -> str:
    """A number of parameters, such as "1.24 billion"."""
    if n >= BILLION:
        return f"{n / BILLION:.2f} billion"
    return f"{n / MILLION:.1f} million" if n >= MILLION else str(n)
