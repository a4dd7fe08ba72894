"""The options of a draft model: a small one, or a block of the file. The model checks its guesses.

Knows no devices and no files. Tested by tests/runtime/test_draft_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..base.options import Options, Shortcut, option, parse_number
from ..graph.types import GGMLType
from ..model.params import (
    ALL_LAYERS,
    INT32_MAX,
    KV_NAMES,
    check_kv_type,
    check_names,
    number_or,
    parse_layers,
    parse_names,
    parse_overrides,
)


def parse_count(text: str) -> int:
    """Return a whole number."""
    return parse_number(int, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftParams(Options):
    """The draft model and its placement. It has the context of the model that it guesses for.

    The options of placement also place the block of `draft_mtp`.
    """

    title: ClassVar[str] = "draft model"

    draft_model: str = option(
        "",
        *("-md", "--spec-draft-model", "--model-draft"),
        metavar="MODEL",
        help="a small model that guesses the next tokens, as MODEL",
        default_text="none",
        shortcuts=(
            Shortcut(
                ("-hfd", "-hfrd", "--spec-draft-hf", "--hf-repo-draft"),
                None,
                "a draft model on Hugging Face, as -hf",
                lambda text: text if "://" in text else f"hf://{text}",
                metavar="USER/REPO[:QUANT]",
                env="SPEC_DRAFT_HF_REPO",
            ),
        ),
    )
    draft_mtp: bool = option(
        False,
        "--mtp",
        help="load the block of the model's file that predicts further tokens (MTP), in place of a "
        "draft model; --spec-type draft-mtp loads it, too",
    )
    draft_devices: Sequence[str] = option(
        (),
        *("-devd", "--spec-draft-device", "--device-draft"),
        parse=parse_names,
        check=check_names,
        metavar="DEV,...",
        help="devices of the draft model, as -dev",
        default_text="those of -dev",
    )
    draft_gpu_layers: int | None = option(
        None,
        *("-ngld", "--spec-draft-ngl", "--gpu-layers-draft", "--n-gpu-layers-draft"),
        parse=parse_layers,
        low=-(2**31),
        high=INT32_MAX,
        env="N_GPU_LAYERS_DRAFT",
        help="layers of the draft model on the devices, as -ngl",
        default_text="auto",
    )
    draft_overrides: Sequence[tuple[str, str]] = option(
        (),
        *("-otd", "--spec-draft-override-tensor", "--override-tensor-draft"),
        parse=parse_overrides,
        repeats=True,
        metavar="RULE,...",
        help="buffer type for weights of the draft model, as -ot",
        default_text="",
    )
    draft_cpu_moe: int | None = option(
        None,
        *("-ncmoed", "--spec-draft-n-cpu-moe", "--n-cpu-moe-draft"),
        low=-1,
        high=INT32_MAX,
        help="keep the experts of its first N layers on the CPU",
        default_text="as few as needed",
        shortcuts=(
            Shortcut(
                ("-cmoed", "--spec-draft-cpu-moe", "--cpu-moe-draft"),
                ALL_LAYERS,
                "keep all its experts on the CPU",
            ),
            Shortcut(("--spec-draft-ncmoe",), None, "as -ncmoed", parse_count),
        ),
    )
    draft_type_k: GGMLType = option(
        GGMLType.F16,
        *("-ctkd", "--spec-draft-type-k", "--cache-type-k-draft"),
        metavar="TYPE",
        check=check_kv_type,
        env="SPEC_DRAFT_CACHE_TYPE_K",
        help=f"type of its cached keys: {KV_NAMES}",
        default_text="f16",
    )
    draft_type_v: GGMLType = option(
        GGMLType.F16,
        *("-ctvd", "--spec-draft-type-v", "--cache-type-v-draft"),
        metavar="TYPE",
        check=check_kv_type,
        env="SPEC_DRAFT_CACHE_TYPE_V",
        help=f"type of its cached values: {KV_NAMES}",
        default_text="f16",
    )
    draft_threads: int | None = option(
        None,
        *("-td", "--spec-draft-threads", "--threads-draft"),
        parse=number_or(None),
        low=1,
        high=512,
        help="threads of the draft model",
        default_text="same as -t",
    )
    draft_threads_batch: int | None = option(
        None,
        *("-tbd", "--spec-draft-threads-batch", "--threads-batch-draft"),
        parse=number_or(None),
        low=1,
        high=512,
        help="threads of the draft model for prompts and several sequences",
        default_text="same as -td",
    )
