"""The parameters of an open model and of a request: nested declarations, passed on unchanged.

The command line, the environment and Python read them; the plan reads `OpenParams`, and HTTP reads
`RequestParams`. A new option needs a field in one of the groups, and no other line. Knows no device
and no file.
Tested by tests/runtime/test_params.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from ..base.errors import RequestError
from ..base.options import Options, checked, declarations, group, option, parse_json, refused
from ..model.adapter_params import AdapterParams, Scales, check_scales
from ..model.chat.builtin import template_source
from ..model.chat.message import ReasoningFormat
from ..model.guide.params import GrammarParams
from ..model.metadata_params import MetadataParams
from ..model.params import INT32_MAX, ContextParams, EmbeddingParams, PlacementParams
from ..model.sampling import SamplingParams
from .draft_params import DraftParams
from .speculative_params import SpeculativeParams

CACHE_RAM: Final = 8192  # MiB


def _template(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise refused(name, value, "a string")
    if value:
        template_source(value)
    return value


def _variables(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise refused(name, value, 'an object like {"enable_thinking": false}')
    return dict(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams(Options):
    """The model to open, and values that replace those of its file."""

    title: ClassVar[str] = "model"

    path: str | Path = option("", help="the GGUF file; of a split model, the first one")
    alias: str | None = option(
        None,
        *("-a", "--alias"),
        metavar="NAME",
        help="the model's name for clients",
        default_text="the file's",
    )
    chat_template: str | None = option(
        None,
        "--chat-template",
        metavar="TEMPLATE",
        help="a name of llama.cpp's, such as llama3, or jinja source",
        default_text="the file's",
        check=_template,
    )
    chat_template_kwargs: Mapping[str, Any] | None = option(
        None,
        "--chat-template-kwargs",
        metavar="JSON",
        parse=parse_json,
        check=_variables,
        help="variables of the chat template, as a JSON object; a request may replace them",
        default_text="none",
    )
    reasoning: str = option(
        "auto",
        *("-rea", "--reasoning"),
        metavar="on|off|auto",
        choices=("on", "off", "auto"),
        help="reason before answers: `enable_thinking` of the chat template; auto: it decides",
    )
    reasoning_effort: str = option(
        "",
        "--reasoning-effort",
        metavar="LEVEL",
        default_text="the template decides",
        help="`reasoning_effort` of the chat template, such as low or high; none: do not reason",
    )
    prefill_assistant: bool = option(
        True,
        "--prefill-assistant",
        off=("--no-prefill-assistant",),
        help="continue the last message of a chat if it is the assistant's",
    )
    skip_chat_parsing: bool = option(
        False,
        "--skip-chat-parsing",
        off=("--no-skip-chat-parsing",),
        help="all text of an answer is its content, also reasoning and tool calls",
    )
    spm_infill: bool = option(
        False,
        "--spm-infill",
        help="prompts whose middle the model fills in have the suffix first, as some models prefer",
    )
    check_tensors: bool = option(
        False, "--check-tensors", help="check that all weights are finite numbers before loading"
    )


def template_variables(params: ModelParams) -> Mapping[str, Any]:
    """Variables of the chat template that requests do not set."""
    found: dict[str, Any] = {}
    if params.reasoning != "auto":
        found["enable_thinking"] = params.reasoning == "on"
    if params.reasoning_effort == "none":
        found["enable_thinking"] = False
    elif params.reasoning_effort:
        found["reasoning_effort"] = params.reasoning_effort
    return found | dict(params.chat_template_kwargs or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParams(Options):
    """How the engine schedules generations."""

    title: ClassVar[str] = "engine"

    max_waiting: int = option(
        2048,
        "--max-waiting",
        low=1,
        high=INT32_MAX,
        help="generations that may wait; further ones are refused",
    )
    max_client_waiting: int = option(
        512,
        "--max-client-waiting",
        low=1,
        high=INT32_MAX,
        help="generations of one client, by key or address, that may wait",
    )
    max_itl: int = option(
        0,
        "--max-itl",
        metavar="MS",
        low=-1,
        high=INT32_MAX,
        help="most milliseconds between tokens while other prompts are evaluated: a step takes so "
        "few prompt tokens; 0: twice the time between tokens without them, -1: no limit",
    )


def _cache_folder(name: str, value: object) -> str:
    """The path of a folder, which may not exist yet, or ""."""
    path = str(value)
    if path and Path(path).exists() and not Path(path).is_dir():
        raise RequestError(f"{name}: {path} is not a folder")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheParams(Options):
    """Pages of prompts that leave the context's memory, and come back instead of being evaluated
    again."""

    title: ClassVar[str] = "prompt cache"

    cache_ram: int | None = option(
        None,
        *("-cram", "--cache-ram"),
        metavar="MIB",
        low=-1,
        high=INT32_MAX,
        help="most memory for pages and states of prompts that leave the context; -1: no limit, "
        "0: off",
        default_text=f"a quarter of the memory that the model leaves free, {CACHE_RAM} at most",
    )
    prompt_cache_dir: str = option(
        "",
        "--prompt-cache-dir",
        metavar="DIR",
        check=_cache_folder,
        help="a folder for pages that leave this memory, and for all at the end: a later process "
        "reads them",
        default_text="",
    )
    prompt_cache_size: int = option(
        16384,
        "--prompt-cache-size",
        metavar="MIB",
        low=1,
        high=INT32_MAX,
        help="most bytes of files in --prompt-cache-dir",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenParams(Options):
    """Which model to open, and how. `OpenParams.make` takes the options of all groups by name."""

    model: ModelParams = group(ModelParams)
    context: ContextParams = group(ContextParams)
    adapters: AdapterParams = group(AdapterParams)
    embedding: EmbeddingParams = group(EmbeddingParams)
    placement: PlacementParams = group(PlacementParams)
    metadata: MetadataParams = group(MetadataParams)
    engine: EngineParams = group(EngineParams)
    cache: CacheParams = group(CacheParams)
    draft: DraftParams = group(DraftParams)


def _stop(name: str, value: object) -> tuple[str, ...]:
    """A text or several that end a generation. Empty ones are left out, as in llama-server."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise refused(name, value, "a string or a list of strings")
    return tuple(text for text in texts if text)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParams(Options):
    """How one generation runs, besides sampling. Names are llama-server's."""

    title: ClassVar[str] = "generation"

    n_predict: int = option(
        -1,
        *("-n", "--predict", "--n-predict"),
        low=-1,
        high=INT32_MAX,
        help="most tokens to generate; -1: until an end token or a full context",
    )
    context_shift: bool = option(
        False,
        "--context-shift",
        off=("--no-context-shift",),
        help="go on when the context is full, without its oldest tokens: the others become a new "
        "prompt. Without a limit, a text then has as many tokens as the context",
    )
    n_keep: int = option(
        0,
        "--keep",
        low=-1,
        high=INT32_MAX,
        help="tokens of the prompt that a shift keeps, besides its first special token; -1: all",
    )
    n_discard: int = option(
        0,
        low=0,
        high=INT32_MAX,
        help="tokens after the kept ones that a shift drops; 0: half of them",
    )
    ignore_eos: bool = option(
        False, "--ignore-eos", help="never sample an end token: continue to the limit"
    )
    stop: tuple[str, ...] = option(
        (),
        *("-r", "--reverse-prompt"),
        parse=lambda text: (text,),
        check=_stop,
        repeats=True,
        metavar="TEXT",
        help="a text that ends the generation, and is not part of it; may be repeated",
        default_text="",
    )
    special: bool = option(
        False,
        *("-sp", "--special"),
        help="special tokens are part of the text, by their names",
    )
    t_max_predict_ms: int = option(
        -1,
        low=-1,
        high=INT32_MAX,
        clamp=True,
        help="time limit in milliseconds after the first token, once the text has a new line; "
        "-1: no limit",
    )
    reasoning_format: str = option(
        "auto",
        "--reasoning-format",
        metavar="FORMAT",
        env="THINK",
        choices=tuple(map(str, ReasoningFormat)),
        help="of chats: auto, deepseek: reasoning is apart from the answer; none: it is part of "
        "it; deepseek-legacy: both",
    )
    reasoning_budget: int = option(
        -1,
        "--reasoning-budget",
        env="THINK_BUDGET",
        low=-1,
        high=INT32_MAX,
        help="most tokens of reasoning in an answer of a chat; -1: no limit, 0: none",
    )
    reasoning_budget_message: str = option(
        "",
        "--reasoning-budget-message",
        env="THINK_BUDGET_MESSAGE",
        metavar="MESSAGE",
        default_text="none",
        help="text before the mark that ends reasoning when its budget is spent",
    )
    cache_prompt: bool = option(
        True,
        "--cache-prompt",
        off=("--no-cache-prompt",),
        help="share evaluated prefixes with other generations",
    )
    lora: Scales | None = option(
        None,
        check=check_scales,
        help='scales of LoRA adapters, as [{"id": 0, "scale": 0.5}]; 0 for those not listed',
        default_text="those of the model",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParams(Options):
    """What a request may set. `RequestParams.make` takes the options of all groups by name."""

    generation: GenerationParams = group(GenerationParams)
    sampling: SamplingParams = group(SamplingParams)
    grammar: GrammarParams = group(GrammarParams)
    speculative: SpeculativeParams = group(SpeculativeParams)


# other names of request options, in ascending order of priority
ALIASES: Final = {
    "max_tokens": "n_predict",
    "max_completion_tokens": "n_predict",
    "reasoning_budget_tokens": "reasoning_budget",
    "thinking_budget_tokens": "reasoning_budget",
    "speculative.type": "spec_type",
    "speculative.types": "spec_type",
    "speculative.n_max": "spec_n_max",
    "speculative.n_min": "spec_n_min",
    "speculative.p_min": "spec_p_min",
}


def without_aliases(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request, by the names of `RequestParams`. An own name wins over an alias.

    Raises:
        RequestError: an alias has an invalid value; names the alias.
    """
    found: dict[str, Any] = {}
    for alias, name in ALIASES.items():
        if alias in given and name not in given:
            declared = declarations(RequestParams)[name]
            found[name] = checked(declared._replace(name=alias), given[alias])
    return found | {name: value for name, value in given.items() if name not in ALIASES}
