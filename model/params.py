"""The options of a model's placement and of its context.

Names are llama-server's. Knows no devices and no files.
Tested by tests/runtime/test_params.py and tests/cli/test_flags.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ..base.options import Options, Shortcut, option, parse_number, refused, whole
from ..graph.types import KV_TYPES, GGMLType
from ..kernels.host import POLL
from .pooling import POOLINGS, Pooling

INT32_MAX: Final = 2**31 - 1
ALL_LAYERS: Final = -1
N_PARALLEL: Final = 4
DEFAULT_CTX: Final = 8192  # tokens of context for each sequence, if the context size is not set
FIT_TARGET: Final = 1024  # MiB to leave free on a device
PLACEMENTS: Final = ("strict", "warn", "auto")
KV_NAMES: Final = ", ".join(t.name.lower() for t in KV_TYPES)
SPLIT_MODES: Final = ("layer", "none")
CUTTING_MODES: Final = ("row", "tensor")  # of llama.cpp: cut matrices over the devices


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list."""
    return tuple(name for name in text.split(",") if name)


def parse_layers(text: str) -> int | None:
    """Return a number of layers; -1 for `all`, None for `auto`."""
    if text in ("all", "auto"):
        return ALL_LAYERS if text == "all" else None
    try:
        return parse_number(int, text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number, 'all' or 'auto'") from None


def number_or(default: int | None) -> Callable[[str], int | None]:
    """Return a parser of whole numbers; -1 is llama.cpp's word for the default."""

    def parse(text: str) -> int | None:
        return default if text == "-1" else parse_number(int, text)

    return parse


def parse_shares(text: str) -> tuple[float, ...]:
    """Return the numbers of a list separated by commas or slashes."""
    try:
        return tuple(parse_number(float, part.strip()) for part in re.split("[,/]", text))
    except ValueError:
        raise ValueError(f"{text!r}: must be numbers like 3,1") from None


def parse_targets(text: str) -> tuple[int, ...]:
    """Return the whole numbers of a comma-separated list."""
    try:
        return tuple(parse_number(int, part.strip()) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number, nor a list like 1024,512") from None


def parse_overrides(text: str) -> tuple[tuple[str, str], ...]:
    """Return the (regex, buffer type) pairs of a comma-separated list of REGEX=BUFFER_TYPE.

    A comma inside brackets of any kind is part of the pattern. The last '=' ends the pattern.
    """
    return tuple(_override(item) for item in _split_outside_brackets(text))


def _override(item: str) -> tuple[str, str]:
    pattern, found, buft = (part.strip() for part in item.rpartition("="))
    if not (pattern and found and buft):
        raise ValueError(
            f"{item!r}: must be like exps=CPU, a pattern for names of weights and a buffer type"
        )
    try:
        re.compile(pattern)
    except re.error as e:
        raise ValueError(f"{pattern!r} is not a regular expression: {e}") from None
    return pattern, buft


def _split_outside_brackets(text: str) -> list[str]:
    """Split a text at the commas outside the brackets of regular expressions."""
    parts, depth = [""], 0
    # an escaped character or a character set is one piece, as brackets in it are plain text
    for piece in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", text, re.DOTALL):
        if piece == "," and depth <= 0:
            parts.append("")
            continue
        depth += (piece in ("(", "{")) - (piece in (")", "}"))
        parts[-1] += piece
    return parts


def check_kv_type(name: str, value: Any) -> GGMLType:
    """Return a KV type from the type or its name. Case is ignored.

    Raises:
        RequestError: lists the valid types.
    """
    known = {t.name.lower(): t for t in KV_TYPES}
    text = value.name if isinstance(value, GGMLType) else str(value)
    found = known.get(text.lower())
    if found is None:
        raise refused(name, text, f"one of {KV_NAMES}")
    return found


def _check_split_mode(name: str, value: Any) -> str:
    if value in SPLIT_MODES:
        return str(value)
    why = "; a layer is computed whole, on one device" if value in CUTTING_MODES else ""
    raise refused(name, value, f"one of {', '.join(SPLIT_MODES)}{why}")


def _check_targets(name: str, value: Any) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    wrong = next((n for n in sizes if not 0 <= whole(name, n) <= INT32_MAX), None)
    if not sizes or wrong is not None:
        raise refused(name, value if wrong is None else wrong, f"0 to {INT32_MAX}")
    return sizes


def parse_pooling(text: str) -> Pooling:
    """Return the pooling of a name. Raises ValueError: lists the names."""
    if text not in POOLINGS:
        raise ValueError(f"{text!r} is not one of {', '.join(POOLINGS)}")
    return POOLINGS[text]


def _check_pooling(name: str, value: Any) -> Pooling | None:
    if value is None or isinstance(value, Pooling):
        return value
    if not isinstance(value, str) or value not in POOLINGS:
        raise refused(name, value, f"one of {', '.join(POOLINGS)}")
    return POOLINGS[value]


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Return a tuple of names. Raises RequestError: it is no list of names."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    names = tuple(value) if is_list else ()
    if not is_list or not all(isinstance(one, str) for one in names):
        raise refused(name, value, "a list of names")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementParams(Options):
    """The devices of a model, and the layers and weights of each."""

    title: ClassVar[str] = "placement"

    n_threads: int | None = option(
        None,
        *("-t", "--threads"),
        parse=number_or(None),
        low=1,
        high=512,
        help="threads of the CPU",
        default_text="one per core",
    )
    n_threads_batch: int | None = option(
        None,
        *("-tb", "--threads-batch"),
        parse=number_or(None),
        low=1,
        high=512,
        help="threads for prompts and for several sequences at once",
        default_text="same as -t",
    )
    poll: int = option(
        POLL,
        "--poll",
        low=0,
        high=100,
        help="how long threads spin for work before they sleep: from 0 (not at all) to 100 (2 ms)",
    )
    devices: Sequence[str] = option(
        (),
        *("-dev", "--device"),
        parse=parse_names,
        check=check_names,
        metavar="DEV,...",
        help="devices that take layers: CUDA0, cuda, none, sim, sim:24GiB, sim:24GiB:2, "
        "ray:NODE/CPU, ray:NODE/CUDA0",
        default_text="all usable GPUs",
    )
    n_gpu_layers: int | None = option(
        None,
        *("-ngl", "--gpu-layers", "--n-gpu-layers"),
        parse=parse_layers,
        low=-(2**31),
        high=INT32_MAX,
        help="number of layers on the devices, the last layers first: a number, all, or auto (as "
        "many as fit)",
        default_text="auto",
    )
    split_mode: str = option(
        "layer",
        *("-sm", "--split-mode"),
        metavar="MODE",
        check=_check_split_mode,
        help="layer: spread the layers over the devices; none: use the main device only",
    )
    main_gpu: int = option(
        0,
        *("-mg", "--main-gpu"),
        low=0,
        high=INT32_MAX,
        help="index of the main device for -sm none",
    )
    tensor_split: tuple[float, ...] | None = option(
        None,
        *("-ts", "--tensor-split"),
        parse=parse_shares,
        metavar="A,B",
        help="each device's share of the layers",
        default_text="in proportion to free memory",
    )
    kv_offload: bool = option(
        True,
        *("-kvo", "--kv-offload"),
        off=("-nkvo", "--no-kv-offload"),
        help="keep keys and values on the devices of their layers; off: in host memory",
    )
    op_offload: bool | None = option(
        None,
        "--op-offload",
        off=("--no-op-offload",),
        help="copy the CPU's weights to a device for large batches",
        default_text="on, if the buffers for it fit",
    )
    embd_offload: bool | None = option(
        None,
        "--embd-offload",
        off=("--no-embd-offload",),
        help="keep the embeddings on the device of the first layer; off: in host memory",
        default_text="on for CUDA, if they fit",
    )
    overrides: Sequence[tuple[str, str]] = option(
        (),
        *("-ot", "--override-tensor"),
        parse=parse_overrides,
        repeats=True,
        metavar="REGEX=BUFT,...",
        help="buffer type for weights by name, like exps=CPU; the first match counts; may be "
        "repeated",
        default_text="",
    )
    n_cpu_moe: int | None = option(
        None,
        *("-ncmoe", "--n-cpu-moe"),
        low=-1,
        high=INT32_MAX,
        help="keep the experts of the first N layers on the CPU",
        default_text="as few as needed",
        shortcuts=(Shortcut(("-cmoe", "--cpu-moe"), ALL_LAYERS, "keep all experts on the CPU"),),
    )
    placement: str = option(
        "warn",
        "--placement",
        choices=PLACEMENTS,
        metavar="RULE",
        help="if a node cannot run on the device of its layer: strict refuses to start, warn logs "
        "it, auto is silent",
    )
    fit: bool = option(
        True,
        *("-fit", "--fit"),
        bare="on",
        metavar="on|off",
        help="choose the layers and experts on the devices, and the context, so that the model "
        "fits; never changes a value that is set",
    )
    fit_target: Sequence[int] | None = option(
        None,
        *("-fitt", "--fit-target"),
        parse=parse_targets,
        check=_check_targets,
        metavar="MiB,...",
        help="memory that --fit leaves free on the devices, in their order; one number is for all",
        default_text=str(FIT_TARGET),
    )
    repack: bool = option(
        True,
        "--repack",
        off=("-nr", "--no-repack"),
        help="lay out the CPU's weights for its kernels; off: slower, same bits as a simulated "
        "device",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParams(Options):
    """The number of tokens that a context holds and computes at once."""

    title: ClassVar[str] = "context"

    n_ctx: int | None = option(
        None,
        *("-c", "--ctx-size"),
        low=0,
        high=INT32_MAX,
        help="tokens of context, shared by all sequences; 0: as many as the model was trained with",
        default_text=f"the trained size, at most {DEFAULT_CTX} x -np; less if it does not fit",
    )
    fit_ctx: int = option(
        4096,
        *("-fitc", "--fit-ctx"),
        low=1,
        high=INT32_MAX,
        help="the smallest context that --fit may choose",
    )
    n_batch: int = option(
        2048,
        *("-b", "--batch-size"),
        low=1,
        high=INT32_MAX,
        env="BATCH",
        help="maximum number of prompt tokens in one step; values above -ub have no effect",
    )
    n_ubatch: int = option(
        512,
        *("-ub", "--ubatch-size"),
        low=1,
        high=INT32_MAX,
        env="UBATCH",
        help="maximum number of tokens computed at once",
    )
    type_k: GGMLType = option(
        GGMLType.F16,
        *("-ctk", "--cache-type-k"),
        check=check_kv_type,
        metavar="TYPE",
        help=f"type of cached keys: {KV_NAMES}",
        default_text="f16",
    )
    type_v: GGMLType = option(
        GGMLType.F16,
        *("-ctv", "--cache-type-v"),
        check=check_kv_type,
        metavar="TYPE",
        help="type of cached values",
        default_text="f16",
    )
    swa_full: bool = option(
        False,
        "--swa-full",
        help="layers with a sliding window keep all tokens; off: those of the window",
    )
    swa_prefix: int | None = option(
        None,
        "--swa-prefix",
        low=0,
        high=INT32_MAX,
        help="tokens that layers with a sliding window keep for shared prefixes, besides those of "
        "running requests; a prefix needs its last window",
        default_text="1024 for each of -np, and at least a window",
    )
    ctx_checkpoints: int | None = option(
        None,
        *("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"),
        low=0,
        high=4096,
        help="states that recurrent layers keep for shared prefixes, for each of -np, besides "
        "those of running requests; others go to the memory of -cram",
        default_text="8, less if all are more than 512 MiB",
    )
    n_parallel: int = option(
        N_PARALLEL,
        *("-np", "--parallel"),
        parse=number_or(N_PARALLEL),
        low=1,
        high=1024,
        env="N_PARALLEL",
        help="maximum number of requests decoded together",
    )

    def size(
        self, n_ctx_train: int, max_default: int | None = None, n_parallel: int | None = None
    ) -> int:
        """Return the context size, in tokens, for a model that was trained with `n_ctx_train`.

        `max_default` is the largest size that may be chosen without the user, if there is a limit.
        `n_parallel` replaces the number of sequences that share the context.
        """
        if self.n_ctx is None:
            wanted = max(DEFAULT_CTX * (n_parallel or self.n_parallel), self.fit_ctx)
            return min(n_ctx_train, wanted, n_ctx_train if max_default is None else max_default)
        return self.n_ctx or n_ctx_train


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingParams(Options):
    """If a model computes embeddings, and which."""

    title: ClassVar[str] = "embeddings"

    embeddings: bool | None = option(
        None,
        *("--embeddings", "--embedding"),
        off=("--no-embeddings",),
        help="compute embeddings, not text",
        default_text="on for encoders and for files that name a pooling",
    )
    pooling: Pooling | None = option(
        None,
        "--pooling",
        parse=parse_pooling,
        check=_check_pooling,
        metavar="KIND",
        help=f"how the tokens' vectors become the text's: {', '.join(POOLINGS)}; turns on "
        "--embeddings",
        default_text="the file's; else last for decoders, mean for encoders",
        shortcuts=(
            Shortcut(
                ("--rerank", "--reranking"), Pooling.RANK, "score pairs of texts: --pooling rank"
            ),
        ),
    )
    embd_normalize: int = option(
        2,
        "--embd-normalize",
        low=-1,
        high=INT32_MAX,
        help="length of embeddings: -1 as computed, 0 largest element 32760, 1 taxicab, 2 "
        "euclidean, P: P-norm",
    )
