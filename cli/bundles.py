"""llama-server's flags that choose a model with its options, such as --gpt-oss-20b-default.

Each stands for other flags, which win over it if they are typed. Imports nothing slow.
Tested by tests/cli/test_bundles.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .parser import Parser

HUB: Final = "https://huggingface.co/ggml-org"
FIM: Final = {"port": "8012", "batch-size": "1024", "ubatch-size": "1024", "ctx-size": "0"}
GPT_OSS: Final = {
    **{"port": "8013", "batch-size": "32768", "ubatch-size": "2048"},
    **{"parallel": "2", "ctx-size": "262144"},
    **{"temp": "1.0", "top-p": "1.0", "top-k": "0", "min-p": "0.01"},
}
# texts share no context here: --ctx-size is that of one text
EMBEDDING: Final = {
    **{"port": "8011", "batch-size": "2048", "ubatch-size": "2048"},
    **{"parallel": "32", "ctx-size": "2048", "embeddings": "on"},
}


def _file(repository: str, name: str) -> dict[str, str]:
    return {"hf-repo": f"{HUB}/{repository}/resolve/main/{name}"}


FIM_DRAFT: Final = {
    "spec-draft-model": f"{HUB}/Qwen2.5-Coder-0.5B-Q8_0-GGUF/resolve/main/"
    "qwen2.5-coder-0.5b-q8_0.gguf"
}

# the flags that each flag stands for, by their long names
BUNDLES: Final[Mapping[str, Mapping[str, str]]] = {
    "--embd-gemma-default": {
        **_file("embeddinggemma-300M-qat-q4_0-GGUF", "embeddinggemma-300M-qat-Q4_0.gguf"),
        **EMBEDDING,
    },
    "--fim-qwen-1.5b-default": {
        **_file("Qwen2.5-Coder-1.5B-Q8_0-GGUF", "qwen2.5-coder-1.5b-q8_0.gguf"),
        **FIM,
    },
    "--fim-qwen-3b-default": {
        **_file("Qwen2.5-Coder-3B-Q8_0-GGUF", "qwen2.5-coder-3b-q8_0.gguf"),
        **FIM,
    },
    "--fim-qwen-7b-default": {
        **_file("Qwen2.5-Coder-7B-Q8_0-GGUF", "qwen2.5-coder-7b-q8_0.gguf"),
        **FIM,
    },
    "--fim-qwen-7b-spec": {
        **_file("Qwen2.5-Coder-7B-Q8_0-GGUF", "qwen2.5-coder-7b-q8_0.gguf"),
        **FIM_DRAFT,
        **FIM,
    },
    "--fim-qwen-14b-spec": {
        **_file("Qwen2.5-Coder-14B-Q8_0-GGUF", "qwen2.5-coder-14b-q8_0.gguf"),
        **FIM_DRAFT,
        **FIM,
    },
    "--fim-qwen-30b-default": {
        **_file("Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF", "qwen3-coder-30b-a3b-instruct-q8_0.gguf"),
        **FIM,
    },
    "--gpt-oss-20b-default": {**_file("gpt-oss-20b-GGUF", "gpt-oss-20b-mxfp4.gguf"), **GPT_OSS},
    "--gpt-oss-120b-default": {"hf-repo": "ggml-org/gpt-oss-120b-GGUF", **GPT_OSS},
}


def add_bundle_flags(parser: Parser) -> None:
    """Add the flags of all bundles: at most one of them is given."""
    group = parser.add_argument_group(
        "models with their options", "Each stands for other flags, which may be given too."
    )
    one = group.add_mutually_exclusive_group()
    for flag, values in BUNDLES.items():
        shown = (
            f"--{name}" if value == "on" else f"--{name} {value}" for name, value in values.items()
        )
        action = one.add_argument(flag, action="store_true", help=" ".join(shown))
        parser.bundles[action.dest] = (flag, values)
