"""The flags that commands share, by llama-server's names, and what they make.

Knows how a flag is written; what a value means is checked where it is used. A flag's `dest` is the
field that it sets, so that an error of the field can name the flag (`Parser.in_flags`).
Tested by tests/cli/test_flags.py.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ..base.errors import RequestError
from ..kernels.cpu.pool import POLL
from ..model.sampling import SamplingParams
from ..runtime.params import PLACEMENTS, InstanceParams
from .download import hub_model, model_path

ALL_LAYERS: Final = -1


def number_of_layers(text: str) -> int | None:
    """`-ngl`: a number, or `all` (-1), or `auto` (None)."""
    if text in ("all", "auto"):
        return ALL_LAYERS if text == "all" else None
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number, nor 'all' or 'auto'") from None


def shares(text: str) -> tuple[float, ...]:
    """`-ts`: numbers with commas or slashes between them."""
    try:
        return tuple(float(part) for part in re.split("[,/]", text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be numbers like 3,1") from None


def bias(text: str) -> tuple[int, float]:
    """`--logit-bias`: TOKEN+BIAS or TOKEN-BIAS."""
    match = re.fullmatch(r"(\d+)([+-](?:\d+\.?\d*|inf))", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: must be like 15043+1 or 15043-inf")
    return int(match[1]), float(match[2])


def overrides(text: str) -> tuple[tuple[str, str], ...]:
    """`-ot`: REGEX=BUFT with commas between them, as pairs.

    A comma in brackets of any kind belongs to its pattern, and so does every '=' but the last.
    """
    return tuple(_override(item) for item in _split_outside_brackets(text))


def _override(item: str) -> tuple[str, str]:
    pattern, found, buft = (part.strip() for part in item.rpartition("="))
    if not (pattern and found and buft):
        raise argparse.ArgumentTypeError(
            f"{item!r}: must be like exps=CPU, a pattern for the names of weights and a memory"
        )
    try:
        re.compile(pattern)
    except re.error as e:
        raise argparse.ArgumentTypeError(f"{pattern!r} is no regular expression: {e}") from None
    return pattern, buft


def _split_outside_brackets(text: str) -> list[str]:
    """The parts between commas that are in no brackets of a regular expression."""
    parts, depth = [""], 0
    # an escaped character, or a set of characters, is one piece: brackets in it are plain text
    for piece in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", text, re.DOTALL):
        if piece == "," and depth <= 0:
            parts.append("")
            continue
        depth += (piece in ("(", "{")) - (piece in (")", "}"))
        parts[-1] += piece
    return parts


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(name for name in text.split(",") if name)


def add_model_flags(parser: argparse.ArgumentParser, *, argument: bool = False) -> None:
    """Which model, how large, and where it runs. `argument`: the model may come without its -m."""
    group = parser.add_argument_group("model")
    add_model_flag(group, argument=argument)
    add = group.add_argument
    add(
        "-c",
        "--ctx-size",
        dest="n_ctx",
        type=int,
        default=0,
        metavar="N",
        help="tokens of context, shared by all sequences (0: what the model was trained with)",
    )
    add(
        "-b",
        "--batch-size",
        dest="n_batch",
        type=int,
        default=2048,
        metavar="N",
        help="most prompt tokens in one step; -ub, where that is less (2048)",
    )
    add(
        "-ub",
        "--ubatch-size",
        dest="n_ubatch",
        type=int,
        default=512,
        metavar="N",
        help="most tokens computed at once (512)",
    )
    add(
        "-ctk",
        "--cache-type-k",
        dest="type_k",
        default="f16",
        metavar="TYPE",
        help="type of cached keys: f32, f16, bf16, q8_0 (f16)",
    )
    add(
        "-ctv",
        "--cache-type-v",
        dest="type_v",
        default="f16",
        metavar="TYPE",
        help="type of cached values (f16)",
    )
    add(
        "-np",
        "--parallel",
        dest="n_parallel",
        type=int,
        default=4,
        metavar="N",
        help="requests decoded together (4)",
    )
    _add_device_flags(parser)


def add_model_flag(group: argparse._ArgumentGroup, *, argument: bool = False) -> None:
    """The model, a file or one of Hugging Face; without one, that which comes with Lamella."""
    text = "GGUF file, the first of a split one (the small model that comes with Lamella)"
    one = group.add_mutually_exclusive_group()
    if argument:
        # without a default, which would take the place of what -m has given
        one.add_argument("model", metavar="MODEL", nargs="?", default=argparse.SUPPRESS, help=text)
        text = "the same, as a flag"
    one.add_argument("-m", "--model", metavar="FILE", help=text)
    one.add_argument(
        "-hf",
        "--hf-repo",
        type=hub_model,
        metavar="USER/REPO[:QUANT]",
        help="a model of Hugging Face, downloaded if it is not in the cache (:Q4_K_M, else the "
        "first there is)",
    )
    add = group.add_argument
    add("-hff", "--hf-file", metavar="FILE", help="with -hf: the file, whatever its quant is")
    add("--offline", action="store_true", help="with -hf: what the cache has, without the network")


def _add_device_flags(parser: argparse.ArgumentParser) -> None:
    """Where it runs."""
    group = parser.add_argument_group("where it runs")
    add = group.add_argument
    add(
        "-t",
        "--threads",
        dest="n_threads",
        type=int,
        metavar="N",
        help="threads of the CPU (one for each core)",
    )
    add(
        "-tb",
        "--threads-batch",
        dest="n_threads_batch",
        type=int,
        metavar="N",
        help="threads for prompts and for several sequences at once (as -t)",
    )
    add(
        "--poll",
        type=int,
        default=POLL,
        metavar="N",
        help=f"how long threads wait awake: 0, they sleep at once, to 100, for 2 ms ({POLL})",
    )
    add_offload_flags(group)
    _add_placement_flags(group)
    add(
        "-nr",
        "--no-repack",
        action="store_true",
        help="keep the CPU's weights as the file has them: slower; the bits of a simulated device",
    )


def add_devices_flag(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "-dev",
        "--device",
        type=names,
        default=(),
        metavar="DEV,...",
        help="devices that take layers: CUDA0, cuda, none, sim, sim:24GiB, sim:24GiB:2 "
        "(all NVIDIA GPUs)",
    )


def add_offload_flags(group: argparse._ArgumentGroup, layers: str = "auto") -> None:
    """What devices take over from the CPU; by default, so many layers."""
    add_devices_flag(group)
    add = group.add_argument
    add(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        dest="n_gpu_layers",
        type=number_of_layers,
        default=number_of_layers(layers),
        metavar="N",
        help="layers for the devices, from the last one on: a number, all, or auto: as many as "
        f"fit ({layers})",
    )
    add(
        "-sm",
        "--split-mode",
        default="layer",
        metavar="MODE",
        help="layer: layers are spread over the devices; none: all on the main one (layer)",
    )
    add(
        "-mg",
        "--main-gpu",
        type=int,
        default=0,
        metavar="N",
        help="with -sm none: which of the devices, from 0 on (0)",
    )
    add(
        "-ts",
        "--tensor-split",
        type=shares,
        metavar="A,B",
        help="the devices' shares of the layers (by their free memory)",
    )
    add("-nkvo", "--no-kv-offload", action="store_true", help="keep keys and values in host memory")
    add(
        "--no-op-offload",
        action="store_true",
        help="do not copy weights to a device for large batches",
    )


def _add_placement_flags(group: argparse._ArgumentGroup) -> None:
    """What goes where within that, and what may go wrong."""
    add = group.add_argument
    add(
        "-ot",
        "--override-tensor",
        type=overrides,
        action="append",
        default=[],
        metavar="REGEX=BUFT,...",
        help="memory for weights by name, like exps=CPU; the first match counts; may be repeated",
    )
    add("-cmoe", "--cpu-moe", action="store_true", help="the experts of all layers for the CPU")
    add(
        "-ncmoe",
        "--n-cpu-moe",
        type=int,
        default=0,
        metavar="N",
        help="the experts of the first N layers for the CPU (0)",
    )
    add(
        "--placement",
        choices=PLACEMENTS,
        default="warn",
        metavar="RULE",
        help="where nodes cannot run where their layer is: strict refuses to start, warn tells, "
        "auto does not (warn)",
    )
    add("--fit", action="store_true", help="take a smaller context if the memory is too small")
    add(
        "-fitt",
        "--fit-target",
        type=int,
        default=1024,
        metavar="MiB",
        help="memory that -ngl auto and --fit leave free on each device (1024)",
    )


def add_predict_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-n",
        "--predict",
        "--n-predict",
        dest="n_predict",
        type=int,
        default=-1,
        metavar="N",
        help="most tokens to generate; -1: until the model ends or the context is full (-1)",
    )


def add_template_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--chat-template", metavar="TEMPLATE", help="jinja source, or chatml (the file's)"
    )
    group.add_argument("--chat-template-file", metavar="FILE", help="a file with the template")


def instance_params(args: argparse.Namespace, *, header_only: bool = False) -> InstanceParams:
    """What to open, from the flags; a model of Hugging Face is here then, or at least its header.

    Raises:
        RequestError: a value that cannot be. DownloadError: the model cannot be had.
    """
    params = InstanceParams(
        path="",
        n_ctx=args.n_ctx,
        n_batch=args.n_batch,
        n_ubatch=args.n_ubatch,
        n_parallel=args.n_parallel,
        n_threads=args.n_threads,
        n_threads_batch=args.n_threads_batch,
        poll=args.poll,
        n_gpu_layers=args.n_gpu_layers,
        devices=args.device,
        split_mode=args.split_mode,
        main_gpu=args.main_gpu,
        tensor_split=args.tensor_split,
        type_k=args.type_k,
        type_v=args.type_v,
        kv_offload=not args.no_kv_offload,
        op_offload=not args.no_op_offload,
        repack=not args.no_repack,
        overrides=tuple(pair for pairs in args.override_tensor for pair in pairs),
        n_cpu_moe=ALL_LAYERS if args.cpu_moe else args.n_cpu_moe,
        placement=args.placement,
        fit=args.fit,
        fit_target=args.fit_target,
        chat_template=_chat_template(args),
    )
    # last: a wrong value must not be told after a download
    return replace(params, path=model_path(args, header_only=header_only))


def _chat_template(args: argparse.Namespace) -> str | None:
    path: str | None = getattr(args, "chat_template_file", None)
    source: str | None = getattr(args, "chat_template", None)
    return source if path is None else read_text(path)


# flag, field of SamplingParams, type, help
_SAMPLING: Final[Sequence[tuple[str, str, type, str]]] = (
    ("--temp", "temperature", float, "randomness; 0 always takes the likeliest token"),
    ("--top-k", "top_k", int, "only the K likeliest tokens; 0: all"),
    ("--top-p", "top_p", float, "only the likeliest tokens of this probability together; 1: all"),
    ("--min-p", "min_p", float, "only tokens this likely beside the likeliest; 0: all"),
    ("--typical", "typical_p", float, "locally typical sampling; 1: off"),
    ("--top-nsigma", "top_n_sigma", float, "only logits within N deviations of the best; -1: off"),
    ("--xtc-probability", "xtc_probability", float, "chance to exclude top choices; 0: off"),
    ("--xtc-threshold", "xtc_threshold", float, "what counts as a top choice"),
    ("--dynatemp-range", "dynatemp_range", float, "temperature varies by this with entropy"),
    ("--dynatemp-exp", "dynatemp_exponent", float, "how entropy becomes temperature"),
    ("--repeat-last-n", "repeat_last_n", int, "tokens that penalties look back on"),
    ("--repeat-penalty", "repeat_penalty", float, "of tokens that were there before; 1: none"),
    ("--presence-penalty", "presence_penalty", float, "once, if a token was there; 0: none"),
    ("--frequency-penalty", "frequency_penalty", float, "each time a token was there; 0: none"),
    ("--dry-multiplier", "dry_multiplier", float, "strength of DRY against repetition; 0: off"),
    ("--dry-base", "dry_base", float, "growth of DRY's penalty with length"),
    ("--dry-allowed-length", "dry_allowed_length", int, "repetition that DRY allows"),
    ("--dry-penalty-last-n", "dry_penalty_last_n", int, "tokens that DRY looks back on"),
)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen; what is not given has no value, for the model's file may have one."""
    defaults = SamplingParams()
    group = parser.add_argument_group(
        "sampling", "What the model's file recommends comes before the defaults shown."
    )
    group.add_argument(
        "-s",
        "--seed",
        type=int,
        metavar="N",
        help="of the random numbers; -1: another one each time (-1)",
    )
    for flag, field, type, text in _SAMPLING:
        default = getattr(defaults, field)
        group.add_argument(flag, dest=field, type=type, metavar="N", help=f"{text} ({default:g})")
    group.add_argument(
        "--samplers",
        type=lambda text: tuple(text.split(";")),
        metavar="A;B",
        help=f"the chain, in order ({';'.join(defaults.samplers)})",
    )
    group.add_argument(
        "-l",
        "--logit-bias",
        type=bias,
        action="append",
        metavar="ID+BIAS",
        help="make a token likelier, or 15043-inf impossible",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="go on after the model has ended the text"
    )


def sampling_given(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `SamplingParams` that flags have set.

    Raises:
        RequestError: a value that cannot be.
    """
    fields = ("seed", "samplers", "logit_bias", *(field for _, field, _, _ in _SAMPLING))
    given = {field: getattr(args, field) for field in fields}
    given = {field: value for field, value in given.items() if value is not None}
    SamplingParams(**given)  # wrong ones are told before a model is opened
    return given


def unescape(text: str) -> str:
    r"""`\n`, `\t`, `\r`, `\\`, `\'`, `\"` and `\xHH` as the characters they stand for.

    Anything else stays as it is, as in llama.cpp.
    """
    plain = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}

    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else plain[code]

    return re.sub(r"\\([ntr\\'\"]|x[0-9a-fA-F]{2})", character, text)


def read_text(path: str) -> str:
    """A text file's content.

    Raises:
        RequestError: it cannot be read, or is no UTF-8.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as e:
        raise RequestError(f"{path} cannot be read: {e}") from e
