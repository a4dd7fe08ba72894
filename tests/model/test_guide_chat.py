"""Grammars of whole answers: reasoning, content and calls in the format of a chat."""

from __future__ import annotations

from typing import Any

import pytest
from guides import NO_NAMES, accepts, byte_vocab

from lamella.model.chat.formats import GENERIC, CallSyntax, ChatFormat
from lamella.model.chat.formats.syntaxes import HERMES, THINK
from lamella.model.chat.formats.table import FORMATS
from lamella.model.chat.message import Tool
from lamella.model.guide import Compiler, GrammarKind, GrammarSpec, chat_spec

HERMES_FORMAT = ChatFormat(name="hermes", reasoning=(THINK,), calls=(HERMES,))
PORT = {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}
TOOLS = (Tool(name="call_port", parameters=PORT), Tool(name="list_ports"))
CALL = '<tool_call>\n{"name": "call_port", "arguments": {"port": "Oslo"}}\n</tool_call>'
LIST = '<tool_call>\n{"name": "list_ports", "arguments": {}}\n</tool_call>'
THOUGHT = "<think>\nPerhaps <tool_call>?\n</think>\n\n"


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(byte_vocab())


@pytest.mark.parametrize(
    ("options", "accepted", "refused"),
    [
        (
            {},
            ["", "Hello", f"Wait\n{CALL}", f"{THOUGHT}{CALL}\n{LIST}", "<think>\nStill", THOUGHT],
            [f"{CALL}.", "<tool_call>", CALL.replace("port", "part"), CALL.replace("Oslo", '"')],
        ),
        ({"parallel": False}, [CALL], [f"{CALL}\n{LIST}"]),
        ({"mode": "required"}, [CALL, THOUGHT + LIST], ["", "Hello", f"Wait {CALL}", THOUGHT]),
        ({"name": "list_ports"}, [LIST], [CALL, ""]),
        ({"mode": "required", "thinking": False}, [LIST], [THOUGHT + LIST]),
        ({"mode": "required", "start": "<think>\n"}, [f"So\n</think>\n{LIST}"], [LIST]),
        ({"mode": "required", "start": THOUGHT}, [LIST], [THOUGHT + LIST]),
        ({"start": "Well, <tool_call>"}, [LIST.removeprefix("<tool_call>")], ["", LIST]),
    ],
    ids=["auto", "single", "required", "named", "not thinking", "open", "closed", "begun"],
)
def test_an_answer_has_the_form_that_a_request_asks_for(
    compiler: Compiler, options: dict[str, Any], accepted: list[str], refused: list[str]
) -> None:
    spec = chat_spec(HERMES_FORMAT, TOOLS, **options)
    assert spec is not None
    grammar = compiler.compile(spec)
    assert [text for text in accepted if not accepts(grammar, text)] == []
    assert [text for text in refused if accepts(grammar, text)] == []


def test_without_tools_an_answer_is_free() -> None:
    assert chat_spec(HERMES_FORMAT, ()) is None
    assert chat_spec(HERMES_FORMAT, TOOLS, mode="none") is None


def test_a_response_is_constrained_where_reasoning_ends(compiler: Compiler) -> None:
    response = GrammarSpec(GrammarKind.REGEX, "[0-9]+")
    spec = chat_spec(HERMES_FORMAT, TOOLS, response=response)
    assert spec is not None
    grammar = compiler.compile(spec)
    for text in ("42", f"{THOUGHT}42", CALL, f"{THOUGHT}{CALL}\n{LIST}"):
        assert accepts(grammar, text), text
    for text in ("", "six", THOUGHT, f"42{CALL}"):
        assert not accepts(grammar, text), text


def test_a_call_that_looks_like_json_begins_with_the_name_of_a_tool(compiler: Compiler) -> None:
    [format] = [each for each in FORMATS if each.name == "llama-3"]
    spec = chat_spec(format, (*TOOLS, Tool(name="call_port_again")))
    assert spec is not None
    grammar = compiler.compile(spec)
    for text in (
        '{"name": "Oslo", "parameters": 3}',
        '{"name": "call_port", "parameters": {"port": "Oslo"}}',
        'So:\n{ "name":"call_port_again", "parameters": {}}',
    ):
        assert accepts(grammar, text), text
    for text in ('{"name": "call_port"}', '{"name": "call_port", "parameters": {"port": 1}}'):
        assert not accepts(grammar, text), text


@pytest.mark.parametrize("key", ["name", "function"])
@pytest.mark.parametrize("name", ["llama-3", "generic"])
def test_a_call_may_begin_with_its_type(compiler: Compiler, name: str, key: str) -> None:
    """As Llama often writes it, and as the parser reads it."""
    [format] = [each for each in (*FORMATS, GENERIC) if each.name == name]
    spec = chat_spec(format, TOOLS)
    assert spec is not None
    grammar = compiler.compile(spec)
    key_of_arguments = "parameters" if name == "llama-3" else "arguments"
    begin, end = ("", "") if name == "llama-3" else ("[", "]")
    for arguments, is_valid in (('{"port": "Oslo"}', True), ('{"port": 1}', False), ("{}", False)):
        call = f'{{"type": "function", "{key}": "call_port", "{key_of_arguments}": {arguments}}}'
        for text in (f"{begin}{call}{end}", f"So:\n{begin}{call.replace(': ', ':', 2)}{end}"):
            assert accepts(grammar, text) is is_valid, text
    other = f'{begin}{{"type": "function", "{key}": "Oslo", "use": 3}}{end}'
    assert accepts(grammar, other)


def test_what_a_tool_leaves_open_is_listed_with_its_path(compiler: Compiler) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    spec = chat_spec(GENERIC, (TOOLS[0], Tool(name="pick", parameters=schema)))
    assert spec is not None
    [loosened] = compiler.compile(spec).loosened
    assert (loosened.path, loosened.keyword) == ("tools[1].parameters.properties.x", "uniqueItems")


def test_json_in_content_is_free(compiler: Compiler) -> None:
    """Calls that begin like any JSON: alone, in a list, and in an object of calls."""
    call = '{"name": "$name", "arguments": $json}'
    wrapped = CallSyntax(begin='{"tool_calls": [', call=call, between=", ", end="]}")
    listed = CallSyntax(begin="[", call=call, between=", ", end="]")
    format = ChatFormat(name="json", calls=(wrapped, listed, CallSyntax(call=call)))
    spec = chat_spec(format, TOOLS)
    assert spec is not None
    grammar = compiler.compile(spec)
    one = '{"name": "call_port", "arguments": {"port": "Oslo"}}'
    two = one + ', {"name": "list_ports", "arguments": {}}'
    all = f'{{"tool_calls":[{two}]}}'
    for text in ('[1, {"a": []}]', '{"name": "x"}', f"So:\n{one}", f"[{two}]", all):
        assert accepts(grammar, text), text
    for text in (one, f"[{two}]", all):
        wrong = text.replace('"port"', '"part"')
        assert not accepts(grammar, wrong), wrong


@pytest.mark.parametrize("with_tokens", [False, True], ids=["text", "tokens"])
def test_a_mark_that_other_parts_have_too(with_tokens: bool) -> None:
    """Only the name of a tool tells a call then, also if the prompt has the mark."""
    format = ChatFormat(
        name="arrows", calls=(CallSyntax(call=">>>$name\n$json"),), dropped=(">>>all\n",)
    )
    vocab = byte_vocab(*([">>>"] if with_tokens else []))
    names = {">>>": vocab.special_ids[">>>"]} if with_tokens else NO_NAMES
    tools = (*TOOLS, Tool(name="list_ports_of"))
    call, wrong = 'call_port\n{"port": "Oslo"}', 'call_port\n{"part": "Oslo"}'
    free, begun = (
        Compiler(vocab).compile(spec)
        for start in ("", "assistant\n\n>>>")
        if (spec := chat_spec(format, tools, start=start))
    )
    for text in ("all\nHello", call, f"{call}>>>list_ports_of\n{{}}", f"all\nSo: >>>{call}"):
        assert accepts(begun, text, names), text
        assert accepts(free, f">>>{text}", names), text
    for text in (wrong, f"all\nSo: >>>{wrong}", f"{call}."):
        assert not accepts(begun, text, names), text
        assert not accepts(free, f">>>{text}", names), text
    required = chat_spec(format, tools, mode="required", start="\n\n>>>")
    assert required is not None
    assert accepts(Compiler(vocab).compile(required), call, names)
    assert not accepts(Compiler(vocab).compile(required), "all\nHello", names)
