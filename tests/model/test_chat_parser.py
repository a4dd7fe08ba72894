"""The parser of answers: what other tests of given answers do not show."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from chat_reading import ALL, chat_parser, deltas, read

from lamella.model.chat.message import (
    ArgumentsDelta,
    CallDelta,
    ChatMessage,
    ContentDelta,
    ReasoningDelta,
    ReasoningFormat,
    ToolCall,
)
from lamella.model.chat.parser.schema_types import ALL_TYPES, types_of


def test_deltas_come_as_soon_as_they_are_certain() -> None:
    pieces = ["<thi", "nk>Hm", "m.</th", "ink>\n\nI", " see <tool", '_call>\n{"name": "f', '", "a']
    pieces += ['rguments": {"te', 'xt": "a"}}\n</tool_c', "all>"]
    assert deltas("hermes", *pieces) == [
        [],
        [ReasoningDelta("Hm")],
        [ReasoningDelta("m.")],
        [ContentDelta("I")],
        [ContentDelta(" see")],
        [],
        [CallDelta(0, "new0", "f")],
        [ArgumentsDelta(0, '{"te')],
        [ArgumentsDelta(0, 'xt": "a"}')],
        [],
        [],
    ]


def test_strings_of_parameters_are_streamed_and_other_values_come_whole() -> None:
    pieces = ["<tool_call>\n<function=f>\n<parameter=text>\nsay ", '"hi"', "\n\n</par"]
    pieces += ["ameter>\n<parameter=list>\n[1,", " 2]\n</parameter>\n</function>\n</tool_call>"]
    assert deltas("qwen-xml", *pieces) == [
        [CallDelta(0, "new0", "f"), ArgumentsDelta(0, '{"text":"say ')],
        [ArgumentsDelta(0, '\\"hi\\"')],
        [ArgumentsDelta(0, "\\n")],
        [ArgumentsDelta(0, '"')],
        [ArgumentsDelta(0, ',"list":[1, 2]}')],
        [],
    ]


def test_a_call_that_is_cut_before_its_arguments_has_none() -> None:
    for text in ('"f"', '"f",', '"f", "argum', '"f", "arguments":'):
        found = ChatMessage()
        for each in deltas("hermes", f'<tool_call>\n{{"name": {text}'):
            found.add(each)
        assert found == ChatMessage(calls=[ToolCall("new0", "f", "")])


QWEN = "<tool_call>\n<function={}>\n</function>\n</tool_call>"


def test_a_call_of_a_tool_may_end_reasoning_where_models_do_so() -> None:
    found = read("qwen-xml", f"<think>Look. {QWEN.format('get_time')}")
    assert found == ChatMessage("", "Look.", [ToolCall("new0", "get_time", "{}")])
    found = read("qwen-xml", f"<think>Write {QWEN.format('other')}?</think>No.")
    assert found == ChatMessage("No.", f"Write {QWEN.format('other')}?")
    call = "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0"
    text = f"<think>Look.{call}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    assert [call.name for call in read("kimi", text).calls] == ["get_time"]
    call = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    assert read("hermes", f"<think>{call}</think>") == ChatMessage("", call)


def test_a_prompt_may_end_inside_any_part() -> None:
    for text, wanted in (
        ("Hm</think>Yes", ChatMessage("Yes", "Hm")),
        ("</think>\n\nYes", ChatMessage("Yes")),
    ):
        assert read("hermes", text, start="<|im_start|>assistant\n<think>\n") == wanted
    start = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert read("hermes", "\nYes", start=start) == ChatMessage("Yes")
    assert read("hermes", " it is", start="assistant\nWell,") == ChatMessage(" it is")
    start = "<|start|>assistant<|channel|>final<|message|>Well,"
    assert read("harmony", " it is", start=start) == ChatMessage(" it is")
    assert read("hermes", " a</think>b", start="<think>Such") == ChatMessage("b", " a")
    found = read("hermes", '{"name": "get_time"}</tool_call>', start="assistant\n<tool_call>\n")
    assert found == ChatMessage(calls=[ToolCall("new0", "get_time", "{}")])
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert read("hermes", "So.", start=f"assistant\n{call}") == ChatMessage("So.")


def test_reasoning_may_stay_in_the_content() -> None:
    raw = ReasoningFormat.NONE
    text = "<think>\nHm\n</think>\n\nYes"
    assert read("hermes", text, reasoning_format=raw) == ChatMessage(text)
    found = read("hermes", "Hm</think>Yes", start="x<think>\n", reasoning_format=raw)
    assert found == ChatMessage("<think>\nHm</think>Yes")
    both = ReasoningFormat.DEEPSEEK_LEGACY
    assert read("hermes", text, reasoning_format=both) == ChatMessage(text, "Hm")


def test_without_calls_their_text_is_content_or_not_for_the_reader() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert read("hermes", call, calls=False) == ChatMessage(call)
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    assert read("harmony", call, calls=False) == ChatMessage()


def read_at_cuts(format: str, text: str, **options: Any) -> ChatMessage:
    """Read a text whole. Check that it is the same at every cut."""
    whole = read(format, text, **options)
    for i in range(len(text)):
        assert read(format, [text[:i], text[i:]], **options) == whole, i
    assert read(format, text, **options) == whole
    return whole


@pytest.mark.parametrize("head", ["final", "commentary"])
@pytest.mark.parametrize("constraint", ["", " <|constrain|>json", "<|constrain|>json", " json"])
def test_content_of_harmony_may_name_its_type(head: str, constraint: str) -> None:
    text = f'<|channel|>{head}{constraint}<|message|>{{"x": 1}}'
    assert read_at_cuts("harmony", text) == ChatMessage('{"x": 1}')


@pytest.mark.parametrize("name", ["f", "functions.f"])
@pytest.mark.parametrize(
    "head",
    [
        "<|channel|>commentary to={} <|constrain|>json",
        "<|channel|>commentary to={}",
        "<|channel|>analysis to={} code",
        "<|start|>assistant to={}<|channel|>commentary json",
    ],
)
def test_recipients_of_harmony_need_no_namespace(name: str, head: str) -> None:
    text = f'<|channel|>analysis<|message|>Hm<|end|>{head.format(name)}<|message|>{{"n": 1}}'
    found = read_at_cuts("harmony", f"{text}<|call|>")
    assert found == ChatMessage("", "Hm", [ToolCall("new0", "f", '{"n": 1}')])


LLAMA = '{"name": "f", "parameters": {"n": 1}}'
WRAPPED = f'{{"type": "function", "function": {LLAMA}}}'
LLAMA_CALLS = [
    LLAMA,
    WRAPPED,
    f'{{"function":{LLAMA},"type":"function"}}',
    '{"type": "function", "function": "f", "parameters": {"n": 1}}',
    '{"parameters": {"n": 1}, "function": "f"}',
]


@pytest.mark.parametrize("call", LLAMA_CALLS)
@pytest.mark.parametrize(
    "text", ["{}", "<|python_tag|>{}", "```json\n{}\n```", "```\n{}\n```\n", "```json\n{}", " {} "]
)
def test_calls_of_llama_in_other_shapes(call: str, text: str) -> None:
    found = read_at_cuts("llama-3", text.replace("{}", call))
    assert found == ChatMessage(calls=[ToolCall("new0", "f", '{"n": 1}')])


@pytest.mark.parametrize("between", ["; ", ";\n", "\n"])
@pytest.mark.parametrize("around", ["{}", "<|python_tag|>{}", "```json\n{}\n```"])
def test_several_calls_of_llama(between: str, around: str) -> None:
    text = around.replace("{}", between.join([LLAMA, WRAPPED, LLAMA]))
    found = read_at_cuts("llama-3", text)
    assert found == ChatMessage(calls=[ToolCall(f"new{i}", "f", '{"n": 1}') for i in range(3)])


def test_content_around_fenced_calls_stays() -> None:
    for format, call in (("llama-3", LLAMA), ("generic", '[{"name": "f", "arguments": {"n": 1}}]')):
        found = read_at_cuts(format, f"Look.\n```json\n{call}\n```\nDone.")
        assert found == ChatMessage("Look.\nDone.", "", [ToolCall("new0", "f", '{"n": 1}')])
    found = read_at_cuts("llama-3", f"Look.\n{LLAMA}\nDone; yes.")
    assert found == ChatMessage("Look.\nDone; yes.", "", [ToolCall("new0", "f", '{"n": 1}')])


@pytest.mark.parametrize(
    "text",
    [
        '{"port": "Bodø", "berths": 4}',
        '```json\n{"port": "Bodø", "berths": 4}\n```',
        '```json\n[{"name": "Bodø", "parameters": 3}]\n```',
        '{"function": "f", "use": "forecast"}',
        '{"type": "function", "function": {"name": "unknown", "parameters": {}}}',
        '{"type": "function", "function": "unknown", "parameters": {}}',
        "```python\nf(1)\n``` and `x`; more",
        "``` {",
    ],
)
def test_json_that_is_no_call_of_llama_is_content(text: str) -> None:
    for format in ("llama-3", "generic"):
        assert read_at_cuts(format, text) == ChatMessage(text)


def test_a_call_in_the_shape_of_openai_is_a_call_in_all_formats_of_json() -> None:
    text = '{"type": "function", "function": {"name": "f", "arguments": {"n": 1}}}'
    wanted = ChatMessage(calls=[ToolCall("new0", "f", '{"n": 1}')])
    assert read_at_cuts("hermes", f"<tool_call>\n{text}\n</tool_call>") == wanted
    assert read_at_cuts("mistral-list", f"[TOOL_CALLS][{text}]") == wanted
    assert read_at_cuts("generic", f"[{text}]") == wanted


def test_ids_are_those_that_models_choose() -> None:
    text = '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abc"}, {"name": "f"}]'
    calls = [ToolCall("abc", "f", "{}"), ToolCall("new0", "f", "{}")]
    assert read("mistral-list", text) == ChatMessage(calls=calls)
    # its id is not known yet
    parser = chat_parser("mistral-list")
    assert parser.push('[TOOL_CALLS][{"name": "f", "arguments": {"n": 1') == []
    assert parser.partial() == ChatMessage(calls=[ToolCall("", "f", '{"n": 1')])
    text = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:7"
    found = read("kimi", f"{text}<|tool_call_argument_begin|>{{}}")
    assert found.calls == [ToolCall("functions.f:7", "f", "{}")]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "12", "12"),
        ("text", " a ", " a "),
        ("text", '"a"', '"a"'),
        ("n", "12", 12),
        ("n", "many", "many"),
        ("n", '"12"', "12"),
        ("list", "[1, {}]", [1, {}]),
        ("list", "[True, 'a']", [True, "a"]),
        ("either", "null", None),
        ("either", "nothing", "nothing"),
        ("either", "12", "12"),
        ("ref", "1", "1"),
        ("other", "[1]", [1]),
        ("other", "a b", "a b"),
    ],
)
def test_types_of_parameters_are_those_of_the_schema(key: str, text: str, value: object) -> None:
    call = f"<tool_call><function=f><parameter={key}>\n{text}\n</parameter></function></tool_call>"
    [found] = read("qwen-xml", call).calls
    assert json.loads(found.arguments) == {key: value}


def test_types_of_schemas_that_never_end_are_found_in_bounded_time() -> None:
    schemas = {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 3} for n in range(99)}
    schemas["s99"] = {"allOf": [{"$ref": "#/$defs/s0"}]}
    root = {"$defs": schemas}
    assert types_of({"$ref": "#/$defs/s0"}, root) == ALL_TYPES
    assert types_of({"$ref": "#"}, {"$ref": "#"}) == ALL_TYPES


@pytest.mark.parametrize(
    "text",
    [
        "Write <tool_call> to start, or <tool_call>{name}.",
        '<tool_call>{"name": ""}',
        '<tool_call>{"arguments": {"a": "Bodø"}, "nam',
        '<tool_call>{"name": "f", "extra": "Bodø", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": Bodø,}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} Bodø</tool_call>',
        '<tool_call>{"name": "f", "arguments": "Bodø',
        "<tool_call>\n<function=f>\n<parameter=Bodø",
        "<tool_call>\n<function=f>\nBodø\n</function>",
        "<tool_call>\n<function=f>\n<parameter=n>\n[Bodø",
    ],
)
def test_no_text_is_lost(text: str) -> None:
    found = read("qwen-xml", text)
    kept = found.content + "".join(call.name + call.arguments for call in found.calls)
    for word in re.findall(r"\w{4,}", text.replace("tool_call", "").replace("parameter", "")):
        assert word in kept or word in ("name", "arguments", "function")


@pytest.mark.parametrize(
    "piece", ["<", "{", '{"', "<tool_call>", '<tool_call>{"name": "f", ', "\n"]
)
def test_long_texts_take_linear_time(piece: str) -> None:
    text = piece * (40_000 // len(piece))
    for format in ("generic", "hermes", "qwen-xml"):
        begin = time.thread_time()
        found = read(format, text)
        assert len(found.content) + 20 * len(found.calls) >= len(text.strip()) / 2
        assert time.thread_time() - begin < 4  # quadratic time takes minutes


# for expressions that go back, such as vLLM's of calls in Python
ATTACKS = ["[A(A=\t" + ")A(A=," * 400, "[f(text=" * 400, '[{"name": ' * 400, "<" * 2000]


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_no_answer_stops_the_parser(attack: str) -> None:
    begin = time.thread_time()
    for name in ALL:
        read(name, attack)
    assert time.thread_time() - begin < 60  # exponential time takes years


# one call as models write it: f(text="Bodø", n=2)
ANSWERS = {
    "functionary-v3.2": '>>>f\n{"text": "Bodø", "n": 2}',
    "granite-3": '<|tool_call|>[{"name": "f", "arguments": {"text": "Bodø", "n": 2}}]',
    "solar-open": (
        "<|begin|>assistant<|tool_calls|><|tool_call:begin|>x1<|tool_call:name|>f"
        '<|tool_call:args|>{"text": "Bodø", "n": 2}<|tool_call:end|><|calls|>'
    ),
    "gigachat-3": (
        '<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": '
        '{"text": "Bodø", "n": 2}}<|message_sep|>\n\n'
    ),
    "gigachat-3.1": '<|function_call|>{"name": "f", "arguments": {"text": "Bodø", "n": 2}}',
    "gigachat-3.5": (
        '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="f">\n'
        '<｜GCML｜parameter name="text" string="true">Bodø</｜GCML｜parameter>\n'
        '<｜GCML｜parameter name="n" string="false">2</｜GCML｜parameter>\n'
        "</｜GCML｜invoke>\n</｜GCML｜tool_calls><|message_sep|>"
    ),
    "deepseek-r1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"text": "Bodø", "n": 2}\n```\n<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "kimi-k3": (
        "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="f" index="1"<|sep|>'
        '<|open|>argument key="text" type="string"<|sep|>Bodø<|close|>argument<|sep|>'
        '<|open|>argument key="n" type="number"<|sep|>2<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
    ),
    "step-3": (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">'
        '<steptml:parameter name="text">Bodø</steptml:parameter>'
        '<steptml:parameter name="n">2</steptml:parameter></steptml:invoke>'
        "<｜tool_call_end｜><｜tool_calls_end｜>"
    ),
    "command-r-plus": (
        'Action:\n```json\n[\n    {\n        "tool_name": "f",\n        "parameters": {\n'
        '            "text": "Bodø",\n            "n": 2\n        }\n    }\n]```'
    ),
    "internlm": (
        '<|action_start|><|plugin|>\n{"name": "f", "parameters": {"text": "Bodø", "n": 2}}'
        "<|action_end|>\n"
    ),
    "olmo-3": '<function_calls>f(text="Bodø", n=2)</function_calls>',
    "minicpm": '<function name="f"><param name="text">Bodø</param><param name="n">2</param>'
    "</function>",
    "functiongemma": (
        "<start_function_call>call:f{text:<escape>Bodø<escape>,n:2}<end_function_call>"
    ),
    "phi-4-mini": (
        '<|tool_call|>[{"name": "f", "arguments": {"text": "Bodø", "n": 2}}]<|/tool_call|>'
    ),
    "hunyuan": (
        "<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>text</arg_key>\n"
        "<arg_value>Bodø</arg_value>\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n"
        "</tool_call>\n</tool_calls>"
    ),
    "hunyuan-opensource": (
        "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
        "<arg_key:opensource>text</arg_key:opensource>\n"
        "<arg_value:opensource>Bodø</arg_value:opensource>\n"
        "<arg_key:opensource>n</arg_key:opensource>\n"
        "<arg_value:opensource>2</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>"
    ),
    "atem": (
        ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n'
        '<atem:parameter name="text">Bodø</atem:parameter>\n'
        '<atem:parameter name="n">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>'
    ),
    "minimax-m3": (
        '</mm:think>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">'
        "]<]minimax[>[<text>Bodø]<]minimax[>[</text>]<]minimax[>[<n>2]<]minimax[>[</n>"
        "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
    ),
    "hunyuan-a13b": (
        '<tool_calls>\n<tool_call>f\n```json\n{"text": "Bodø", "n": 2}\n```\n</tool_call>\n'
        "</tool_calls>"
    ),
    "glm-4.7": (
        "<tool_call>f<arg_key>text</arg_key><arg_value>Bodø</arg_value>"
        "<arg_key>n</arg_key><arg_value>2</arg_value></tool_call>"
    ),
    "minimax-m1": (
        '<tool_calls>\n{"name": "f", "arguments": {"text": "Bodø", "n": 2}}\n</tool_calls>'
    ),
    "longcat": (
        '<longcat_tool_call>\n{"name": "f", "arguments": {"text": "Bodø", "n": 2}}\n'
        "</longcat_tool_call>"
    ),
    "mirothinker": (
        "<use_mcp_tool>\n<server_name>tool-python</server_name>\n<tool_name>f</tool_name>\n"
        '<arguments>\n{"text": "Bodø", "n": 2}\n</arguments>\n</use_mcp_tool>'
    ),
    "lfm2.5": "<|tool_call_start|>[f(text='Bodø', n=2)]<|tool_call_end|>",
    "deepseek-v4": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="text" string="true">Bodø</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="n" string="false">2</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
    ),
    "llama-3": '<|python_tag|>f.call(text="Bodø", n=2)',
    "generic": '{"tool_calls": [{"name": "f", "arguments": {"text": "Bodø", "n": 2}}]}',
}


@pytest.mark.parametrize("format", ANSWERS)
def test_calls_as_models_write_them(format: str) -> None:
    start = ">>>" if format == "functionary-v3.2" else ""
    text = ANSWERS[format].removeprefix(start)
    for pieces in ([text], text):
        found = read(format, pieces, start=start)
        assert (found.content, found.reasoning) == ("", "")
        assert [(call.name, json.loads(call.arguments)) for call in found.calls] == [
            ("f", {"text": "Bodø", "n": 2})
        ]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("lfm2.5", r"<|tool_call_start|>[f(text='a\ud83d\ude00\ud800b')]<|tool_call_end|>"),
        ("llama-3", r'<|python_tag|>f.call(text="a\ud83d\ude00\ud800b")'),
        (
            "generic",
            r'{"tool_calls": [{"name": "f", "arguments": "{\"text\": \"a\ud83d\ude00\ud800b\"}"}]}',
        ),
    ],
)
def test_escapes_make_no_halves_of_characters(format: str, text: str) -> None:
    """No prompt could have them, so the conversation could not go on."""
    [call] = read(format, text).calls
    assert call.parsed == {"text": "a😀�b"}
    call.arguments.encode()


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_no_reply_can_have_make_no_whole_call(number: str) -> None:
    [call] = read("llama-3", f'{{"parameters": {{"n": {number}}}, "name": "f"}}').calls
    assert call.arguments == f'{{"n": {number}}}'
    assert not call.is_complete


def test_content_ends_at_any_mark_of_the_end() -> None:
    text = " to=self<|message|>Hm<|eom|><|start|>assistant to=user<|message|>Look"
    call = ANSWERS["atem"]
    found = read("atem", f"{text}<|eom|><|start|>assistant{call}", start="<|start|>assistant")
    assert (found.content, found.reasoning, len(found.calls)) == ("Look", "Hm", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<![CDATA[a <b>\n</param> & c]]>", "a <b>\n</param> & c"),
        ("<![CDATA[]]>", ""),
        ("<![CDATA", "<![CDATA"),
        ("a <![CDATA[b]]>", "a <![CDATA[b]]>"),
    ],
)
def test_strings_may_stand_in_marks(text: str, value: str) -> None:
    call = f'<function name="f"><param name="text">{text}</param></function>'
    for pieces in ([call], call):
        [found] = read("minicpm", pieces).calls
        assert json.loads(found.arguments) == {"text": value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it's \", b'", "it's \", b"),
        ("']} ) [] {} ', \"'", "]} ) [] {} ', \""),
        (r"'it\'s', n=2", "it's"),
        ("'' ,", ""),
        ("'''a'''", "a"),
        ("'a' + 'b'", "a' + 'b"),
        ("'f('a')\n'", "f('a')\n"),
    ],
)
def test_strings_of_keywords_may_have_quotes_without_backslashes(text: str, value: str) -> None:
    call = f"<|tool_call_start|>[f(text={text}), get_time()]<|tool_call_end|>"
    for pieces in ([call], call):
        first, second = read("lfm2.5", pieces).calls
        assert json.loads(first.arguments)["text"] == value
        assert second.name == "get_time"
