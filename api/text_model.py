"""The public model: texts, chats and their streams.

Its embeddings are in `embeddings`, its tokens and facts in `opened_model`.

    with lamella.load("USER/REPO:Q4_K_M") as model:  # or a file
        print(model.chat("Who are you?"))
        for piece in model.complete_stream("Once upon a time", max_tokens=64):
            print(piece, end="", flush=True)

Without a name, `load` opens the small model that comes with Lamella.

Tested by tests/api/test_load.py, test_complete.py, test_messages.py and test_async.py.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from reprlib import repr as shortened
from typing import Unpack

from .arguments import Request, chat_request, named, text_request
from .base.errors import RequestError
from .chat_options import ChatOptions
from .cli.download import download_bar
from .cli.start import StartProgress
from .completion import Completion, Usage
from .device_array import DeviceArray
from .embeddings import EmbeddingMethods
from .model.chat.message import ToolCall
from .model.find import find_file
from .model.shipped import shipped_model
from .opened_model import Messages, TemplateOptions
from .options import LoadOptions, RequestOptions
from .runtime.answers import form_of, parser_of
from .runtime.async_text import AsyncGeneration, generate_async
from .runtime.chat import Parser
from .runtime.engine.job import Timings
from .runtime.open import open_model
from .runtime.params import OpenParams, RequestParams
from .runtime.text import generate
from .streams import AsyncTextStream, CallPiece, TextPiece, TextStream

# what `lamella` exports from here
__all__ = [
    "load",
    "Model",
    "Completion",
    "Usage",
    "Timings",
    "ToolCall",
    "TextStream",
    "AsyncTextStream",
    "DeviceArray",
    "TextPiece",
    "CallPiece",
    "LoadOptions",
    "RequestOptions",
    "ChatOptions",
]

Prompt = str | Sequence[int]
Stop = str | Sequence[str] | None


class Model(EmbeddingMethods):
    """A loaded model, returned by `lamella.load`. Close it, or use it in a `with` block. A model
    that is no longer referenced is closed.

    `complete` continues a text, `chat` answers messages. Each has four forms: the whole result, a
    stream of its pieces, and the same two for coroutines. All take the same options, as keyword
    arguments: max_tokens=64, temperature=0.8, top_k=40, seed=-1 ... Unset options have the values
    that the model's file recommends, or else their defaults.

    `embed` returns the vectors of texts, and `rerank` the scores of documents. Models that generate
    text do neither, and the others generate no text: `load` decides by the file and its options.

    Safe to use from several threads and tasks: generations at the same time run in one batch, and
    each gives the text that it gives alone. Prompts share evaluated prefixes (`cache_prompt`); the
    text stays the same (with layers on both a GPU and the CPU: only if `op_offload` is off).

    >>> with lamella.load() as model:
    ...     print(model.chat("What is 8 + 5?", temperature=0))
    8 plus 5 is 13.
    """

    # --- chats ---

    @named(ChatOptions, RequestParams)
    def chat(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        stop: Stop = None,
        chat_template_kwargs: TemplateOptions = None,
        **options: Unpack[ChatOptions],
    ) -> Completion:
        """Answer a chat. Return the whole answer.

        >>> messages = [{"role": "user", "content": "Who are you?"}]
        >>> answer = model.chat(messages, max_tokens=5, temperature=0)
        >>> answer.text, answer.finish_reason, answer.usage.completion_tokens
        ('I am the small model', 'length', 5)
        >>> messages.append(answer.message)  # the chat goes on

        >>> from dataclasses import dataclass
        >>> from typing import Literal
        >>> @dataclass
        ... class Sky:
        ...     color: Literal["red", "green", "blue"]
        >>> model.chat("What color is the sky?", json_schema=Sky, temperature=0).parsed
        Sky(color='blue')

        Args:
            messages: each with a "role" (system, user, assistant) and a "content"; or one text of
                the user. A last message of the assistant is continued.
            system: the text of a system message before the others.
            stop: texts that end the answer; they are not part of it.
            chat_template_kwargs: more variables of the model's chat template.
            options: see `RequestOptions`. docs/structured.md explains `json_schema`, `regex` and
                `grammar`, docs/tools.md the following ones.
            tools: the tools that the model may call: Python functions, or dicts in OpenAI's shape.
                Type hints and the docstring of a function become its description.
            tool_choice: "auto", "none", "required", or {"type": "function", "function": {"name":
                ...}}, the tool to call.
            parallel_tool_calls: False: at most one call in an answer.
            reasoning_format: "none": reasoning stays in the text; otherwise it is apart from it.
            reasoning_effort: how much to think, for models that know it; "none": not at all.
            enable_thinking: turns reasoning on or off, for models that know both.

        Raises:
            RequestError: an invalid argument.
            GrammarError: a schema or a grammar that is invalid, or cannot be enforced.
            ContextSizeError: the prompt is too long.
            OverloadedError: `max_client_waiting` generations wait already.
            ClosedError: the model is closed.
        """
        return self._stream(
            chat_request(self._generator(), messages, system, chat_template_kwargs, stop, options)
        ).result()

    @named(ChatOptions, RequestParams)
    def chat_stream(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        stop: Stop = None,
        chat_template_kwargs: TemplateOptions = None,
        **options: Unpack[ChatOptions],
    ) -> TextStream:
        """Answer a chat. Return an iterator over the pieces of the answer.

        Arguments and errors: see `chat`. The answer is generated while it is read. A piece is a
        text. In its attributes it has reasoning and calls of tools, see `TextPiece`.

        >>> for piece in model.chat_stream("What is 8 + 5?", temperature=0):
        ...     print(piece, end="|")
        8| plus| 5| is| 1|3|.|
        """
        return self._stream(
            chat_request(self._generator(), messages, system, chat_template_kwargs, stop, options)
        )

    @named(ChatOptions, RequestParams)
    async def achat(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        stop: Stop = None,
        chat_template_kwargs: TemplateOptions = None,
        **options: Unpack[ChatOptions],
    ) -> Completion:
        """`chat` for coroutines. Answers that tasks wait for at the same time run in one batch.

        >>> import asyncio
        >>> async def ask(*questions):
        ...     return await asyncio.gather(*(model.achat(q, temperature=0) for q in questions))
        >>> [str(answer) for answer in asyncio.run(ask("What is 8 + 5?", "What is 2 + 3?"))]
        ['8 plus 5 is 13.', '2 plus 3 is 5.']

        If the task is cancelled, so is the generation.
        """
        return await self._async_stream(
            chat_request(self._generator(), messages, system, chat_template_kwargs, stop, options)
        ).result()

    @named(ChatOptions, RequestParams)
    def achat_stream(
        self,
        messages: Messages,
        *,
        system: str | None = None,
        stop: Stop = None,
        chat_template_kwargs: TemplateOptions = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncTextStream:
        """`chat_stream` for coroutines. The answer starts with the first wait for a piece.

        >>> import asyncio
        >>> async def show(question):
        ...     async for piece in model.achat_stream(question, temperature=0):
        ...         print(piece, end="")
        >>> asyncio.run(show("What is 2 + 3?"))
        2 plus 3 is 5.
        """
        return self._async_stream(
            chat_request(self._generator(), messages, system, chat_template_kwargs, stop, options)
        )

    # --- texts ---

    @named(RequestOptions, RequestParams)
    def complete(
        self, prompt: Prompt, *, stop: Stop = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """Continue a text. Return the whole continuation.

        >>> model.complete("Once upon a time", max_tokens=6, temperature=0).text
        ', there lived a little boy'
        >>> print(model.complete("Once upon a time", stop=".", seed=1).finish_reason)
        stop
        >>> pattern = ", there was a little (fox|owl) named [A-Z][a-z]+[.]"
        >>> model.complete("Once upon a time", regex=pattern, temperature=0).text
        ', there was a little fox named Oliver.'

        Args:
            prompt: a text or token ids.
            stop: texts that end the generation; they are not part of the result.
            options: see `RequestOptions`.

        Raises:
            RequestError: an invalid argument.
            ContextSizeError: the prompt is too long.
            OverloadedError: `max_client_waiting` generations wait already.
            ClosedError: the model is closed.
        """
        return self._stream(text_request(self._generator(), prompt, stop, options)).result()

    @named(RequestOptions, RequestParams)
    def complete_stream(
        self, prompt: Prompt, *, stop: Stop = None, **options: Unpack[RequestOptions]
    ) -> TextStream:
        """Continue a text. Return an iterator over the pieces of the continuation.

        Arguments and errors: see `complete`. The text is generated while it is read.

        >>> with model.complete_stream("Once upon a time", temperature=0) as stream:
        ...     for piece in stream:
        ...         if "there" in piece:
        ...             break  # the end of the block cancels the rest
        >>> stream.text
        ', there'
        """
        return self._stream(text_request(self._generator(), prompt, stop, options))

    @named(RequestOptions, RequestParams)
    def generate(
        self, prompt: Prompt, *, stop: Stop = None, **options: Unpack[RequestOptions]
    ) -> TextStream:
        """The same as `complete_stream`."""
        return self._stream(text_request(self._generator(), prompt, stop, options))

    @named(RequestOptions, RequestParams)
    async def acomplete(
        self, prompt: Prompt, *, stop: Stop = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """`complete` for coroutines: `text = await model.acomplete("Once upon a time")`.

        If the task is cancelled, so is the generation.
        """
        return await self._async_stream(
            text_request(self._generator(), prompt, stop, options)
        ).result()

    @named(RequestOptions, RequestParams)
    def acomplete_stream(
        self, prompt: Prompt, *, stop: Stop = None, **options: Unpack[RequestOptions]
    ) -> AsyncTextStream:
        """`complete_stream` for coroutines: `async for piece in model.acomplete_stream("a")`."""
        return self._async_stream(text_request(self._generator(), prompt, stop, options))

    # --- streams ---

    def _stream(self, request: Request) -> TextStream:
        """Submit a request: errors come before the first piece is read."""
        instance = self._generator()
        prepared, prompt = request.prompt()
        generation = generate(
            *(instance.engine, instance.vocab, prompt, request.params),
            **form_of(prepared),
        )
        parser = parser_of(prepared)
        return TextStream(self, generation, parser, request.json_schema, request.functions)

    def _async_stream(self, request: Request) -> AsyncTextStream:
        instance = self._generator()

        def start(loop: asyncio.AbstractEventLoop) -> tuple[Parser, AsyncGeneration]:
            prepared, prompt = request.prompt()
            generation = generate_async(
                *(instance.engine, instance.vocab, prompt, request.params),
                loop=loop,
                **form_of(prepared),
            )
            return parser_of(prepared), generation

        return AsyncTextStream(self, start, request.json_schema, request.functions)


@named(LoadOptions, OpenParams)
def load(
    path: str | os.PathLike[str] | None = None,
    *,
    offline: bool = False,
    progress: bool | None = None,
    **options: Unpack[LoadOptions],
) -> Model:
    """Load a model. Download it first if it is on Hugging Face and not in the cache.

    >>> model = lamella.load()  # the small model that comes with Lamella
    >>> model.name, model.n_ctx
    ('lamella-stories-Q8_0', 1024)
    >>> model.close()

    In a coroutine, load in a thread: `model = await asyncio.to_thread(lamella.load, path)`.

    Args:
        path: the model: a GGUF file (of a split model, the first one), "USER/REPO" or
            "USER/REPO:Q4_K_M" on Hugging Face, the URL of a GGUF file, or a name that `lamella
            list` shows. None: the small model that comes with Lamella.
        offline: download nothing.
        progress: show downloads, loading and compiling on stderr. None: on a terminal and in a
            notebook.
        options: see `LoadOptions`. The most common ones are
            `n_ctx`: tokens of the context, shared by all generations (0: the trained size; default:
            at most 8192 x `n_parallel`, less if it does not fit);
            `n_parallel`: the most generations that run at once;
            `devices`: devices for layers, as in ["CUDA0"], ["none"], ["sim:24GiB"] (default: all
            usable GPUs);
            `n_gpu_layers`: layers on these devices (None: as many as fit, -1: all);
            `n_threads`: CPU threads;
            `type_k`, `type_v`: types of the cached keys and values;
            `placement`: "strict" raises if a node cannot run on its layer's device;
            `embeddings`: True: compute embeddings, with a model that could generate text too
            (default: encoders and files that name a pooling do);
            `pooling`: "mean", "cls", "last", "none" or "rank", instead of the file's.

    Raises:
        ModelFileError: the file is missing, broken or not supported.
        DownloadError: the file cannot be downloaded.
        RequestError: an invalid option.
        UnknownDeviceError: a device does not exist.
        DoesNotFitError: a device's memory is too small; known before loading.
        OutOfMemoryError: a device's memory became too small while loading.
        PlacementError: placement is strict, and nodes cannot run on their layer's device.
    """
    if progress is None:
        progress = "ipykernel" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
    OpenParams.make(options)  # refuses an invalid option before a download
    file = shipped_model() if path is None else _find(path, offline, progress)
    params = OpenParams.make({**options, "path": str(file)})
    if params.draft.draft_model:
        draft = _find(params.draft.draft_model, offline, progress)
        params = params.change(draft_model=str(draft))
    if not progress:
        return Model(open_model(params))
    with StartProgress() as bars:
        return Model(open_model(params, on_load=bars.on_load, on_compile=bars.on_compile))


def _find(name: str | os.PathLike[str], offline: bool, progress: bool) -> Path:
    """The file of a model, after a download if it is not cached.

    Raises:
        RequestError: `name` is neither a text nor a path. Others: see `find_file`.
    """
    try:
        name = os.fsdecode(name)
    except TypeError:
        raise RequestError(f"path is {shortened(name)}: must be a text or a path") from None
    with download_bar() if progress else nullcontext() as bar:
        report = None if bar is None else bar.on_progress
        return find_file(name, offline=offline, on_progress=report)
