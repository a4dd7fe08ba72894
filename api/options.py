"""The options of `lamella.load` and of generations, as types of keyword arguments.

Made from the declarations by tests/api/make_reference.py: do not edit. Knows no values.
Tested by tests/api/test_reference.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class LoadOptions(TypedDict, total=False):
    """Options of `lamella.load`."""

    alias: str | None
    """the model's name for clients (default: the file's)"""
    chat_template: str | None
    """a name of llama.cpp's, such as llama3, or jinja source (default: the file's)"""
    chat_template_kwargs: Mapping[str, object] | None
    """variables of the chat template, as a JSON object; a request may replace them (default:
    none)
    """
    reasoning: str
    """reason before answers: `enable_thinking` of the chat template; auto: it decides (default:
    'auto')
    """
    reasoning_effort: str
    """`reasoning_effort` of the chat template, such as low or high; none: do not reason
    (default: the template decides)
    """
    prefill_assistant: bool
    """continue the last message of a chat if it is the assistant's (default: True)"""
    skip_chat_parsing: bool
    """all text of an answer is its content, also reasoning and tool calls (default: False)"""
    spm_infill: bool
    """prompts whose middle the model fills in have the suffix first, as some models prefer
    (default: False)
    """
    check_tensors: bool
    """check that all weights are finite numbers before loading (default: False)"""
    n_ctx: int | None
    """tokens of context, shared by all sequences; 0: as many as the model was trained with
    (default: the trained size, at most 8192 x -np; less if it does not fit)
    """
    fit_ctx: int
    """the smallest context that --fit may choose (default: 4096)"""
    n_batch: int
    """maximum number of prompt tokens in one step; values above -ub have no effect (default:
    2048)
    """
    n_ubatch: int
    """maximum number of tokens computed at once (default: 512)"""
    type_k: str
    """type of cached keys: f16, bf16, f32, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1 (default: f16)"""
    type_v: str
    """type of cached values (default: f16)"""
    swa_full: bool
    """layers with a sliding window keep all tokens; off: those of the window (default: False)"""
    swa_prefix: int | None
    """tokens that layers with a sliding window keep for shared prefixes, besides those of
    running requests; a prefix needs its last window (default: 1024 for each of -np, and at
    least a window)
    """
    ctx_checkpoints: int | None
    """states that recurrent layers keep for shared prefixes, for each of -np, besides those of
    running requests; others go to the memory of -cram (default: 8, less if all are more than
    512 MiB)
    """
    n_parallel: int
    """maximum number of requests decoded together (default: 4)"""
    lora: str | Sequence[str | tuple[str, float]]
    """LoRA adapters (GGUF), with scale 1 for requests that set none; may be repeated"""
    lora_init_without_apply: bool
    """load the adapters with scale 0: only requests that set scales use them (default: False)"""
    control_vector: str | Sequence[str | tuple[str, float]]
    """control vectors (GGUF) that steer all texts; several are added up; may be repeated"""
    control_vector_layer_range: tuple[int, int] | None
    """the first and the last layer that control vectors steer (default: all but the first layer
    of the model)
    """
    embeddings: bool | None
    """compute embeddings, not text (default: on for encoders and for files that name a pooling)"""
    pooling: str | None
    """how the tokens' vectors become the text's: none, mean, cls, last, rank; turns on
    --embeddings (default: the file's; else last for decoders, mean for encoders)
    """
    embd_normalize: int
    """length of embeddings: -1 as computed, 0 largest element 32760, 1 taxicab, 2 euclidean, P:
    P-norm (default: 2)
    """
    n_threads: int | None
    """threads of the CPU (default: one per core)"""
    n_threads_batch: int | None
    """threads for prompts and for several sequences at once (default: same as -t)"""
    poll: int
    """how long threads spin for work before they sleep: from 0 (not at all) to 100 (2 ms)
    (default: 50)
    """
    devices: Sequence[str]
    """devices that take layers: CUDA0, cuda, none, sim, sim:24GiB, sim:24GiB:2, ray:NODE/CPU,
    ray:NODE/CUDA0 (default: all usable GPUs)
    """
    n_gpu_layers: int | None
    """number of layers on the devices, the last layers first: a number, all, or auto (as many as
    fit) (default: auto)
    """
    split_mode: str
    """layer: spread the layers over the devices; none: use the main device only (default:
    'layer')
    """
    main_gpu: int
    """index of the main device for -sm none (default: 0)"""
    tensor_split: Sequence[float] | None
    """each device's share of the layers (default: in proportion to free memory)"""
    kv_offload: bool
    """keep keys and values on the devices of their layers; off: in host memory (default: True)"""
    op_offload: bool | None
    """copy the CPU's weights to a device for large batches (default: on, if the buffers for it
    fit)
    """
    embd_offload: bool | None
    """keep the embeddings on the device of the first layer; off: in host memory (default: on for
    CUDA, if they fit)
    """
    overrides: Sequence[tuple[str, str]]
    """buffer type for weights by name, like exps=CPU; the first match counts; may be repeated"""
    n_cpu_moe: int | None
    """keep the experts of the first N layers on the CPU (default: as few as needed)"""
    placement: str
    """if a node cannot run on the device of its layer: strict refuses to start, warn logs it,
    auto is silent (default: 'warn')
    """
    fit: bool
    """choose the layers and experts on the devices, and the context, so that the model fits;
    never changes a value that is set (default: True)
    """
    fit_target: Sequence[int] | None
    """memory that --fit leaves free on the devices, in their order; one number is for all
    (default: 1024)
    """
    repack: bool
    """lay out the CPU's weights for its kernels; off: slower, same bits as a simulated device
    (default: True)
    """
    override_kv: Mapping[str, bool | int | float | str]
    """replace metadata of the file, like llama.context_length=int:4096; types: int, float, bool,
    str; may be repeated
    """
    rope_scaling: str | None
    """how positions are scaled beyond the trained context: none, linear or yarn (default: the
    file's)
    """
    rope_scale: float | None
    """factor of the context's extension (default: the file's)"""
    rope_freq_base: float | None
    """base frequency of RoPE (default: the file's)"""
    rope_freq_scale: float | None
    """1 / --rope-scale (default: the file's)"""
    yarn_orig_ctx: int | None
    """YaRN: the trained context; 0: the file's (default: the file's)"""
    yarn_ext_factor: float | None
    """YaRN: share of extrapolation (default: the file's)"""
    yarn_attn_factor: float | None
    """YaRN: factor of attention's scores (default: the file's)"""
    yarn_beta_slow: float | None
    """YaRN: rotations below which a frequency is interpolated (default: the file's)"""
    yarn_beta_fast: float | None
    """YaRN: rotations above which a frequency is not changed (default: the file's)"""
    max_waiting: int
    """generations that may wait; further ones are refused (default: 2048)"""
    max_client_waiting: int
    """generations of one client, by key or address, that may wait (default: 512)"""
    max_itl: int
    """most milliseconds between tokens while other prompts are evaluated: a step takes so few
    prompt tokens; 0: twice the time between tokens without them, -1: no limit (default: 0)
    """
    cache_ram: int | None
    """most memory for pages and states of prompts that leave the context; -1: no limit, 0: off
    (default: a quarter of the memory that the model leaves free, 8192 at most)
    """
    prompt_cache_dir: str
    """a folder for pages that leave this memory, and for all at the end: a later process reads
    them
    """
    prompt_cache_size: int
    """most bytes of files in --prompt-cache-dir (default: 16384)"""
    draft_model: str
    """a small model that guesses the next tokens, as MODEL (default: none)"""
    draft_mtp: bool
    """load the block of the model's file that predicts further tokens (MTP), in place of a draft
    model; --spec-type draft-mtp loads it, too (default: False)
    """
    draft_devices: Sequence[str]
    """devices of the draft model, as -dev (default: those of -dev)"""
    draft_gpu_layers: int | None
    """layers of the draft model on the devices, as -ngl (default: auto)"""
    draft_overrides: Sequence[tuple[str, str]]
    """buffer type for weights of the draft model, as -ot"""
    draft_cpu_moe: int | None
    """keep the experts of its first N layers on the CPU (default: as few as needed)"""
    draft_type_k: str
    """type of its cached keys: f16, bf16, f32, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1 (default:
    f16)
    """
    draft_type_v: str
    """type of its cached values: f16, bf16, f32, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1 (default:
    f16)
    """
    draft_threads: int | None
    """threads of the draft model (default: same as -t)"""
    draft_threads_batch: int | None
    """threads of the draft model for prompts and several sequences (default: same as -td)"""


class RequestOptions(TypedDict, total=False):
    """Options of one generation. None means the default."""

    n_predict: int | None
    """most tokens to generate; -1: until an end token or a full context (default: -1)"""
    context_shift: bool | None
    """go on when the context is full, without its oldest tokens: the others become a new prompt.
    Without a limit, a text then has as many tokens as the context (default: False)
    """
    n_keep: int | None
    """tokens of the prompt that a shift keeps, besides its first special token; -1: all
    (default: 0)
    """
    n_discard: int | None
    """tokens after the kept ones that a shift drops; 0: half of them (default: 0)"""
    ignore_eos: bool | None
    """never sample an end token: continue to the limit (default: False)"""
    special: bool | None
    """special tokens are part of the text, by their names (default: False)"""
    t_max_predict_ms: int | None
    """time limit in milliseconds after the first token, once the text has a new line; -1: no
    limit (default: -1)
    """
    reasoning_format: str | None
    """of chats: auto, deepseek: reasoning is apart from the answer; none: it is part of it;
    deepseek-legacy: both (default: 'auto')
    """
    reasoning_budget: int | None
    """most tokens of reasoning in an answer of a chat; -1: no limit, 0: none (default: -1)"""
    reasoning_budget_message: str | None
    """text before the mark that ends reasoning when its budget is spent (default: none)"""
    cache_prompt: bool | None
    """share evaluated prefixes with other generations (default: True)"""
    lora: Sequence[Mapping[str, float]] | None
    """scales of LoRA adapters, as [{"id": 0, "scale": 0.5}]; 0 for those not listed (default:
    those of the model)
    """
    seed: int | None
    """seed of the random numbers; -1: a random seed (default: -1)"""
    temperature: float | None
    """randomness; 0: always the most likely token (default: 0.8)"""
    top_k: int | None
    """only the K most likely tokens; 0: all (default: 40)"""
    top_p: float | None
    """only the most likely tokens up to this total probability; 1: all (default: 0.95)"""
    min_p: float | None
    """minimum probability relative to the most likely token; 0: all (default: 0.05)"""
    typical_p: float | None
    """locally typical sampling; 1: off (default: 1.0)"""
    top_n_sigma: float | None
    """only logits within N standard deviations of the largest; -1: off (default: -1.0)"""
    xtc_probability: float | None
    """probability that XTC excludes top choices; 0: off (default: 0.0)"""
    xtc_threshold: float | None
    """minimum probability of a top choice of XTC; above 0.5: off (default: 0.1)"""
    dynatemp_range: float | None
    """range of dynamic temperature, by entropy; 0: off (default: 0.0)"""
    dynatemp_exponent: float | None
    """exponent of entropy in dynamic temperature (default: 1.0)"""
    repeat_last_n: int | None
    """number of last tokens that penalties apply to; 0: off (default: 64)"""
    repeat_penalty: float | None
    """penalty for repeated tokens; 1: off (default: 1.0)"""
    presence_penalty: float | None
    """penalty for tokens that occurred before; 0: off (default: 0.0)"""
    frequency_penalty: float | None
    """penalty for each earlier occurrence of a token; 0: off (default: 0.0)"""
    dry_multiplier: float | None
    """strength of DRY, a penalty for repeated sequences; 0: off (default: 0.0)"""
    dry_base: float | None
    """growth of DRY's penalty with a sequence's length (default: 1.75)"""
    dry_allowed_length: int | None
    """shortest repeated sequence that DRY penalizes (default: 2)"""
    dry_penalty_last_n: int | None
    """number of last tokens that DRY searches; 0: off (default: 64)"""
    dry_sequence_breakers: Sequence[str] | None
    """a text that ends a repeated sequence, instead of the default ones; may be repeated; none:
    no text (default: \n : \" *)
    """
    mirostat: int | None
    """version of Mirostat, which replaces all samplers but the temperature; 0: off (default: 0)"""
    mirostat_eta: float | None
    """learning rate of Mirostat (default: 0.1)"""
    mirostat_tau: float | None
    """surprise of a token, in bits, that Mirostat aims at (default: 5.0)"""
    adaptive_target: float | None
    """probability that adaptive_p prefers, if --samplers names it; below 0: off (default: -1.0)"""
    adaptive_decay: float | None
    """weight of earlier tokens in adaptive_p (default: 0.9)"""
    min_keep: int | None
    """minimum number of candidates after top_p, min_p, typ_p and xtc (default: 0)"""
    logit_bias: Mapping[int, float] | Mapping[str, float] | Sequence[tuple[int | str, float]] | None
    """add to a token's logit, like 15043+1; 15043-inf bans the token"""
    samplers: Sequence[str] | None
    """samplers, in order (default:
    penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature)
    """
    grammar: str | None
    """GBNF grammar that all text matches; Lark if it begins with %llguidance (default: none)"""
    json_schema: Mapping[str, object] | bool | str | type | TypeAdapter[Any] | None
    """JSON schema that all text matches; {} is any JSON object (default: none)"""
    regex: str | None
    """regular expression that the whole text matches (default: none)"""
    schema_strict: bool | None
    """refuse JSON schemas with keywords that cannot be enforced; off: leave these out (default:
    True)
    """
    spec_type: str | Sequence[str] | None
    """where guesses of the next tokens come from: ngram-simple: the text itself; ngram-mod: also
    other texts of the same client; draft-simple: the model of -md; draft-mtp: a block of the
    model's own file, see --mtp; none; auto: draft-simple or draft-mtp if they are loaded, and
    ngram-simple (default: auto)
    """
    spec_n_max: int | None
    """most tokens to guess for a step; fewer where that is measured to be faster (default: 7)"""
    spec_n_min: int | None
    """fewer guesses than this are not checked (default: 0)"""
    spec_p_min: float | None
    """a draft model stops at a token of less probability (default: 0.0)"""
    spec_ngram_size: int | None
    """tokens that must occur again for a guess of ngram-simple (default: 3)"""
    spec_ngram_match: int | None
    """tokens that must occur again for a guess of ngram-mod (default: 8)"""
    spec_synth_rates: Sequence[float] | None
    """for benchmarks only: each guess is taken with this probability after those before it,
    right or wrong, so texts have no meaning (default: none)
    """
    max_tokens: int | None
    """another name of `n_predict`"""
    max_completion_tokens: int | None
    """another name of `n_predict`"""
    reasoning_budget_tokens: int | None
    """another name of `reasoning_budget`"""
    thinking_budget_tokens: int | None
    """another name of `reasoning_budget`"""
