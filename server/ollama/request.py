"""Ollama's requests, translated to a `ChatRequest` and the options of a generation.

Pure functions. Tested by tests/server/test_ollama_request.py.
"""

from __future__ import annotations

from typing import Any, Final

from ...base.options import checked, declarations
from ...runtime.messages import N_MESSAGES_MAX, Message, check_messages
from ...runtime.params import RequestParams
from ..given import Given

Options = dict[str, Any]

THINKING: Final = ("low", "medium", "high")
ROLES: Final = ("system", "user", "assistant", "tool")
N_IMAGES_MAX: Final = 64

# of `options`: those that have another name here
NAMES: Final = {"num_predict": "n_predict"}
# of `options`: accepted, without effect. They open a model, which the server's flags have done
WITHOUT_EFFECT: Final = frozenset(
    {
        *("embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "num_batch", "num_ctx"),
        *("num_gpu", "num_gqa", "num_keep", "num_thread", "numa", "penalize_newline"),
        *("rope_frequency_base", "rope_frequency_scale", "tfs_z", "use_mlock", "use_mmap"),
        *("vocab_only", "draft_num_predict"),
    }
)
_UNTIL_FULL: Final = -2  # ollama's num_predict: until the context is full


def generation_options(options: Given) -> tuple[Options, set[str]]:
    """Return the options of a generation by the server's names, and the names that are unknown.

    Raises:
        RequestError: an invalid value; names its path.
    """
    declared = declarations(RequestParams)
    found: Options = {}
    unknown = set()
    for name, value in ({} if options.is_absent else options.object()).items():
        own = NAMES.get(name, name)
        if value is None or name in WITHOUT_EFFECT:
            continue
        if name == "stop":  # the body checks it
            found["stop"] = value
        elif own in declared:
            declaration = declared[own]._replace(name=f"options.{name}")
            found[own] = checked(declaration, _in_own_range(name, value))
        else:
            unknown.add(name)
    return found, unknown


def _in_own_range(name: str, value: Any) -> Any:
    """Return a value of an option; ollama's numbers with a meaning as those that have it here."""
    if name == "num_predict" and value == _UNTIL_FULL:
        return -1
    if name == "repeat_last_n" and value == -1:  # the whole context
        return 2**31 - 1
    return value


def thinking_options(think: Given) -> tuple[Options, Options]:
    """Return the variables of the template and the options of the generation for `think`."""
    match think.value:
        case None:
            return {}, {}
        case True:
            return {"enable_thinking": True}, {}
        case False:
            return {"enable_thinking": False}, {"reasoning_budget": 0}
        case str(effort) if effort in THINKING:
            return {"enable_thinking": True, "reasoning_effort": effort}, {}
    raise think.wrong(f"true, false or one of {', '.join(THINKING)}")


def format_options(format: Given) -> Options:
    """Return the options of the generation for `format`: a schema, or "json" for any object."""
    match format.value:
        case None | "":
            return {}
        case "json":
            return {"json_schema": {}}
        case {**schema}:
            return {"json_schema": schema}
    raise format.wrong('"json" or a JSON schema')


def refuse_images(images: Given) -> None:
    """Raises RequestError if there are images."""
    if not images.is_absent and any(images.each(N_IMAGES_MAX)):
        raise images.refused("is not supported yet: models get texts only")


def chat_messages(messages: Given) -> list[Message]:
    """Return the messages of a conversation in OpenAI's shape.

    Ollama's calls may have no id. Their place in the conversation makes one, so that prompts stay
    equal. The result of a tool belongs to the first call of its name that has no result yet.

    Raises:
        RequestError: an invalid part; names its path.
    """
    found: list[Message] = []
    pending: list[tuple[str, str]] = []  # names and ids of calls without a result
    for i, message in enumerate(messages.each(N_MESSAGES_MAX)):
        refuse_images(message.get("images"))
        role = message.get("role").choice(ROLES)
        one: Message = {"role": role, "content": message.get("content").text_or("")}
        if role == "assistant":
            calls, pending = _calls(i, message)
            thinking = message.get("thinking").text_or("")
            one |= ({"reasoning_content": thinking} if thinking else {}) | calls
        elif role == "tool":
            one |= _result(message, pending)
        found.append(one)
    return check_messages(found)


def _calls(i: int, message: Given) -> tuple[Options, list[tuple[str, str]]]:
    """The calls of message number `i` in OpenAI's shape, and their names and ids."""
    given = message.get("tool_calls")
    calls: list[Options] = []
    names: list[tuple[str, str]] = []
    for j, call in enumerate([] if given.is_absent else given.each(N_MESSAGES_MAX)):
        function = call.get("function")
        name, id = function.get("name").text(), call.get("id").text_or(f"call_{i}_{j}")
        arguments = function.object().get("arguments") or {}
        calls.append(
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        )
        names.append((name, id))
    return {"tool_calls": calls} if calls else {}, names


def _result(message: Given, pending: list[tuple[str, str]]) -> Options:
    """The name and the id of the call that a message answers, which is no longer pending."""
    name, id = message.get("tool_name").text_or(""), message.get("tool_call_id").text_or("")
    found = [call for call in pending if call[1] == id or (not id and call[0] == name)]
    call = (found or pending or [("", "")])[0]
    if call in pending:
        pending.remove(call)
    return {"name": name or call[0], "tool_call_id": id or call[1]}


def system_messages(system: str, prompt: str) -> list[Message]:
    """Return the conversation that POST /api/generate makes of its prompt."""
    first = [{"role": "system", "content": system}] if system else []
    return check_messages([*first, {"role": "user", "content": prompt}])
