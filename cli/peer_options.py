"""The flags of llama.cpp that Lamella accepts without effect, or refuses with advice.

They are data: one row per flag, with the reason or the advice in one sentence. Flags that do
something are declared as options instead. Knows no parser. Tested by tests/cli/test_peer_flags.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

ANY: Final = None


class PeerOption(NamedTuple):
    """A flag of llama.cpp.

    `usage` is as in `--help`: names, then a value in capitals or brackets; a value in [] may be
    left out. Names behind a slash turn the flag off: its values are `on` and `off`.
    """

    usage: str
    why: str  # the reason why an accepted value has no effect
    instead: str  # advice for a refused value
    accepted: Collection[str] | None  # ANY: every value
    env: str | None  # the variable, if its name is not the flag's


def no_effect(usage: str, why: str, *, env: str | None = None) -> PeerOption:
    """A flag that is accepted with each value."""
    return PeerOption(usage, why, "", ANY, env)


def refused(usage: str, instead: str, *, env: str | None = None) -> PeerOption:
    """A flag that is refused."""
    return PeerOption(usage, "", instead, (), env)


def only(
    accepted: str, usage: str, why: str, instead: str, *, env: str | None = None
) -> PeerOption:
    """A flag that is accepted with some values, separated by spaces."""
    return PeerOption(usage, why, instead, accepted.split(), env)


TASKSET: Final = "choose processors with `taskset -c 0-7 lamella ...`"
PINNED: Final = "threads are not pinned: the system moves them"
NICE: Final = (
    "text has the priority of the process, embeddings the lowest; `nice` and `chrt` change it"
)
MAPPED: Final = "weights are copied from the file into memory of their own, which is not locked"
PAGES: Final = "evaluated prompts stay in the context's pages, and then in the memory of -cram"
SPACING: Final = "states are kept every 512 tokens, at doubling distances if memory is short"

MODEL: Final = (
    refused("-cl --cache-list", "use `lamella list`"),
    refused("-dr --docker-repo NAME", "there is no download from Docker: use -hf USER/REPO:QUANT"),
    refused("-C --cpu-mask M", TASKSET),
    refused("-Cr --cpu-range LO-HI", TASKSET),
    refused("-Cb --cpu-mask-batch M", TASKSET),
    refused("-Crb --cpu-range-batch LO-HI", TASKSET),
    no_effect("--cpu-strict <0|1>", PINNED),
    no_effect("--cpu-strict-batch <0|1>", PINNED),
    no_effect("--prio N", NICE),
    no_effect("--prio-batch N", NICE),
    no_effect("--poll-batch <0|1>", "--poll is for prompts too"),
    only(
        *("on auto", "-fa --flash-attn [on|off|auto]"),
        "attention is always computed without storing its scores",
        "attention has no other kernel",
    ),
    no_effect("--perf / --no-perf", "`run` prints its timings, and replies contain them"),
    no_effect(
        "--no-host", "pinned host memory holds only weights for devices: see --no-op-offload"
    ),
    no_effect("-dt --defrag-thold N", "the context is stored in pages, which never fragment"),
    refused("--rpc SERVERS", "not supported yet: models run on the devices of one machine"),
    no_effect("-lm --load-mode MODE", MAPPED),
    no_effect("--mlock", MAPPED),
    no_effect("--mmap / --no-mmap", MAPPED),
    no_effect("-dio --direct-io / -ndio --no-direct-io", MAPPED),
    no_effect("-lzm --lazy-mode MODE", "all weights are loaded before the first request"),
    no_effect("--numa TYPE", "the system places threads and memory; `numactl` changes that"),
    refused("-ncffn --n-cpu-ffn N", r"use -ot, for example -ot 'blk\.[0-9]\.ffn=CPU'"),
    no_effect(
        "-kvu --kv-unified / -no-kvu --no-kv-unified",
        "all requests share one pool of pages; none has a part of its own",
    ),
    refused("--kv-unified-per-slot N", "requests share the whole context: limit -n instead"),
    no_effect("-cms --checkpoint-min-step N", SPACING, env="CHECKPOINT_MIN_SPACING_NT"),
    no_effect("--warmup / --no-warmup", "kernels are compiled at the start; no tokens are run"),
)

SPREAD: Final = "layers are spread over the devices: see -sm and -ts"

OTHERS: Final = (  # of vLLM and ollama
    refused("--max-model-len N", "use -c/--ctx-size"),
    refused("--max-num-seqs N", "use -np/--parallel"),
    refused("--max-num-batched-tokens N", "use -ub/--ubatch-size"),
    refused("--served-model-name NAME", "use -a/--alias"),
    refused("--gpu-memory-utilization N", "use -fitt/--fit-target, the MiB that stay free"),
    only("1", "-tp --tensor-parallel-size N", SPREAD, SPREAD),
    only("1", "-pp --pipeline-parallel-size N", SPREAD, SPREAD),
    refused("--kv-cache-dtype TYPE", "use -ctk and -ctv"),
    refused("--max-tokens N", "use -n/--predict"),
    no_effect("--enable-prefix-caching", "shared prefixes are always evaluated once"),
    no_effect("--enforce-eager", "graphs are always built ahead and reused"),
    only("auto", "--dtype TYPE", "the file has its types", "leave it out: the file has its types"),
    refused(
        "--quantization TYPE",
        "leave it out: -hf USER/REPO:QUANT chooses a file",
    ),
    no_effect("--trust-remote-code", "GGUF files contain no code"),
    refused("--disable-log-requests", "use --no-request-log"),
    refused("--load-format FORMAT", "leave it out: models are GGUF files"),
    refused("--cpu-offload-gb N", "use -ngl: layers that do not fit on devices stay on the CPU"),
    no_effect("--reasoning-parser NAME", "the chat template decides how answers are parsed"),
    no_effect("--enable-auto-tool-choice", "requests decide if the model may call tools"),
    no_effect("--tool-call-parser NAME", "the chat template decides how answers are parsed"),
    refused("--num-ctx N", "use -c/--ctx-size"),
    refused("--num-gpu N", "use -ngl/--gpu-layers"),
    refused("--num-predict N", "use -n/--predict"),
    refused("--think [MODE]", "use --reasoning on or --reasoning off"),
    no_effect("--nowordwrap", "lines are not wrapped"),
    refused("--format FORMAT", "use --json-schema"),
    refused("--keepalive TIME", "leave it out: the model stays loaded while `lamella serve` runs"),
)

DRAFT_WIDTH: Final = "--spec-draft-n-max bounds the guesses of all kinds"
K4V: Final = "use --spec-type ngram-simple"
ONE_HIT: Final = "one earlier occurrence is enough for a guess"

SPECULATIVE: Final = (
    refused("--spec-draft-cpu-mask -Cd --cpu-mask-draft M", TASKSET),
    refused("--spec-draft-cpu-range -Crd --cpu-range-draft LO-HI", TASKSET),
    refused("--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft M", TASKSET),
    no_effect("--spec-draft-cpu-strict --cpu-strict-draft <0|1>", PINNED),
    no_effect("--spec-draft-cpu-strict-batch --cpu-strict-batch-draft <0|1>", PINNED),
    no_effect("--spec-draft-prio --prio-draft N", NICE),
    no_effect("--spec-draft-prio-batch --prio-batch-draft N", NICE),
    no_effect("--spec-draft-poll --poll-draft <0|1>", "--poll is for all threads"),
    no_effect("--spec-draft-poll-batch --poll-batch-draft <0|1>", "--poll is for all threads"),
    no_effect("--spec-draft-p-split --draft-p-split P", "a draft is one text, without branches"),
    no_effect(
        "--spec-draft-backend-sampling / --no-spec-draft-backend-sampling",
        "a draft is sampled as the request is",
    ),
    refused("--spec-synth-len N", "use --spec-synth-rates, with a rate for each guess"),
    no_effect("--spec-ngram-mod-n-min N", DRAFT_WIDTH),
    no_effect("--spec-ngram-mod-n-max N", DRAFT_WIDTH),
    no_effect("--spec-ngram-simple-size-m --spec-ngram-size-m N", DRAFT_WIDTH),
    no_effect("--spec-ngram-map-k-size-m N", DRAFT_WIDTH),
    only("1", "--spec-ngram-simple-min-hits --spec-ngram-min-hits N", ONE_HIT, "it must be 1"),
    only("1", "--spec-ngram-map-k-min-hits N", ONE_HIT, "it must be 1"),
    refused("--spec-ngram-map-k4v-size-n N", K4V),
    refused("--spec-ngram-map-k4v-size-m N", K4V),
    refused("--spec-ngram-map-k4v-min-hits N", K4V),
    refused("-lcs --lookup-cache-static FILE", "use --spec-type ngram-mod, whose table is no file"),
    refused(
        "-lcd --lookup-cache-dynamic FILE", "use --spec-type ngram-mod, whose table is no file"
    ),
    no_effect("--spec-default", "n-grams are looked up by default: see --spec-type"),
)

REQUEST: Final = (
    only("on", "-cb --cont-batching / -nocb --no-cont-batching",
         "requests are always batched continuously",
         "requests are always batched continuously: -np 1 runs one at a time"),
    no_effect("-bs --backend-sampling", "samplers run on the CPU; the text is the same"),
    no_effect("--cache-reuse N", "common prefixes are reused; text behind a change is evaluated"),
    only("on", "--jinja / --no-jinja", "chat templates are always rendered by Jinja",
         "there is no other way to render: --chat-template chatml needs nothing of the model"),
    no_effect("--reasoning-preserve / --no-reasoning-preserve",
              "chat templates get messages as they were sent"),
)  # fmt: skip

NO_MEDIA: Final = "models get text only; requests with media are refused"
MEDIA: Final = "images and audio are not supported yet"
TOOLS: Final = "the server runs no tools"
PAGE: Final = "the chat page keeps its settings in the browser"
NO_MCP: Final = "the chat page calls no MCP servers"
NO_SLOTS: Final = "requests share one pool of pages: any of them finds any prefix"
VISION: Final = "images are not supported yet: -hf ggml-org/gemma-3-{}-it-qat-GGUF reads texts"

SERVE: Final = (
    no_effect("-e --escape / --no-escape", "prompts come in requests, where JSON has escapes"),
    no_effect("--cache-idle-slots / --no-cache-idle-slots", PAGES),
    refused("-mm --mmproj FILE", MEDIA),
    refused("-mmu --mmproj-url URL", MEDIA),
    no_effect("--mmproj-auto / --no-mmproj --no-mmproj-auto", NO_MEDIA),
    no_effect("--mmproj-offload / --no-mmproj-offload", NO_MEDIA),
    no_effect("-mmdev --mmproj-device DEV", NO_MEDIA, env="$MTMD_BACKEND_DEVICE"),
    no_effect("--image-min-tokens N", NO_MEDIA),
    no_effect("--image-max-tokens N", NO_MEDIA),
    no_effect("--mtmd-batch-max-tokens N", NO_MEDIA),
    no_effect("--video-fps N", NO_MEDIA),
    no_effect("--video-timestamp-interval N", NO_MEDIA),
    no_effect("--video-ffmpeg-dir DIR", NO_MEDIA),
    no_effect("--media-path DIR", NO_MEDIA),
    no_effect("--ui-config --webui-config JSON", PAGE),
    no_effect("--ui-config-file --webui-config-file FILE", PAGE),
    only("off",
         "--ui-mcp-proxy --webui-mcp-proxy / --no-ui-mcp-proxy --no-webui-mcp-proxy",
         NO_MCP, TOOLS),
    refused("--tools NAME,...", TOOLS),
    refused("--tools-runtime OPTION", TOOLS),
    refused("--mcp-servers-config FILE", TOOLS),
    refused("--mcp-servers-json JSON", TOOLS),
    only("off", "-ag --agent / -no-ag --no-agent", TOOLS, TOOLS),
    no_effect("--threads-http N", "connections need no threads of their own"),
    no_effect("-sps --slot-prompt-similarity N", NO_SLOTS),
    refused("--vision-gemma-4b-default", VISION.format("4b")),
    refused("--vision-gemma-12b-default", VISION.format("12b")),
)  # fmt: skip

NO_PROMPT_CACHE: Final = "use --prompt-cache-dir DIR: evaluated prompts are kept in its files"
CHAT: Final = "`lamella chat` holds conversations"

TERMINAL: Final = (
    no_effect("-co --color [on|off|auto]", "the text has no colors"),
    no_effect("--simple-io", "without a terminal, input and output are plain already"),
    no_effect("--verbose-prompt", "--json prints the prompt's tokens"),
    no_effect("--show-timings / --no-show-timings", "`run` always prints its timings to stderr"),
    refused("-bf --binary-file FILE", "prompts must be UTF-8 text: use -f"),
    refused("--prompt-cache FILE", NO_PROMPT_CACHE),
    refused("--prompt-cache-all", NO_PROMPT_CACHE),
    refused("--prompt-cache-ro", NO_PROMPT_CACHE),
    refused("-gan --grp-attn-n N", "use --rope-scaling yarn"),
    refused("-gaw --grp-attn-w N", "use --rope-scaling yarn"),
    no_effect("-ptc --print-token-count N", "timings have the number of tokens"),
    refused("--image --audio FILE", MEDIA),
    refused("-mm --mmproj FILE", MEDIA),
    refused("--server-base URL", "`lamella` runs the model itself"),
    refused("--in-prefix TEXT", CHAT),
    refused("--in-suffix TEXT", CHAT),
    refused("--in-prefix-bos", CHAT),
)

RUN: Final = (
    refused("-i --interactive", CHAT),
    refused("-if --interactive-first", CHAT),
    refused("-ins --instruct", CHAT),
    refused("-mli --multiline-input", CHAT),
    only("off", "--display-prompt / --no-display-prompt", "the prompt is never printed",
         "the prompt is not printed: print it before"),
)  # fmt: skip

CONVERSATION: Final = (
    only("on", "-cnv --conversation / -no-cnv --no-conversation",
         "`lamella chat` always holds a conversation", "use `lamella run`"),
    no_effect("-i --interactive", "`lamella chat` always reads more messages"),
    no_effect("-if --interactive-first", "without -p, `lamella chat` asks for a message first"),
    no_effect("-ins --instruct", "the chat template is always used"),
    no_effect("--display-prompt / --no-display-prompt", "the prompt is never printed"),
)  # fmt: skip

EMBED: Final = (
    refused("--cls-separator TEXT", "use --query TEXT, and give a document a line"),
    refused("--attention TYPE", "the file says if tokens see later ones"),
    no_effect("--verbose-prompt", "only vectors are printed"),
    no_effect("--embedding --embeddings", "`lamella embed` always computes embeddings"),
)
