"""The Responses API with the official `openai` package: tools, reasoning, schemas and errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from anthropic_world import MARKS, TEMPLATE
from http_world import RunningServer, running
from matrix import combinations
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel
from scripted import open_scripted


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


SCRIPTS = {
    "text": "Hello there, ☃.",
    "thought": "<think>\nLet me see.\n</think>\n\nIt is 4.",
    "call": f"<think>\nA file.\n</think>\n\nI look.\n{call('read', json.dumps({'path': 'a'}))}",
    "calls": "\n".join(call(name, '{"path": "a"}') for name in ("read", "mcp__disk__read")),
    "patch": call("patch", json.dumps({"input": '*** "Begin"\n+☃\n'})),
    "person": '{"name": "Ann", "age": 3}',
    "done": "It says hello.",
}
READ: Any = {
    "type": "function",
    "name": "read",
    "description": "Read a file.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
}
PATCH: Any = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /(.|\\n)+/"},
}
DISK: Any = {"type": "namespace", "name": "mcp__disk", "description": "A disk.", "tools": [READ]}


class Person(BaseModel):
    name: str
    age: int


class Played:
    """Answers with the script whose name the prompt has last: "play thought". Has the prompts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return SCRIPTS[re.findall(r"play (\w+)", prompt)[-1]]


@pytest.fixture(scope="module")
def played() -> Played:
    return Played()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, played: Played) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("model")
    options: dict[str, Any] = {"chat_template": TEMPLATE, "n_ctx": 8192}
    with running(lambda: open_scripted(folder, played, marks=MARKS, **options)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def create(client: OpenAI, script: str, **more: Any) -> Response:
    response: Response = client.responses.create(model="any", input=f"play {script}", **more)
    # the types of the package, which `create` does not check
    Response.model_validate(response.to_dict())
    return response


def stream(client: OpenAI, script: str, **more: Any) -> tuple[list[Any], Any]:
    """The events, and the response that the package adds up."""
    with client.responses.stream(model="any", input=f"play {script}", **more) as events:
        found = list(events)
        return found, events.get_final_response()


def shown(value: object) -> Any:
    """A JSON value without ids and without what the package adds."""
    if isinstance(value, list):
        return [shown(element) for element in value]
    if not isinstance(value, dict):
        return value
    left_out = ("id", "call_id", "parsed", "parsed_arguments")
    return {key: shown(element) for key, element in value.items() if key not in left_out}


def test_a_text(client: OpenAI) -> None:
    response = create(client, "text")
    assert response.output_text == SCRIPTS["text"]
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.output_tokens > 3
    assert client.responses.retrieve(response.id).output == response.output
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_reasoning(client: OpenAI) -> None:
    response = create(client, "thought", reasoning={"effort": "low"})
    reasoning, message = response.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text.strip() == "Let me see."
    assert message.type == "message"
    assert response.output_text == "It is 4."
    assert response.usage is not None
    assert 2 < response.usage.output_tokens_details.reasoning_tokens < 12
    (summarized, _) = create(client, "thought", reasoning={"summary": "auto"}).output
    assert summarized.type == "reasoning"
    assert summarized.summary[0].text.strip() == "Let me see."


@pytest.mark.parametrize(("script", "summary"), combinations(SCRIPTS, [None, "auto"]))
def test_a_stream_adds_up(client: OpenAI, script: str, summary: Literal["auto"] | None) -> None:
    more: Any = {"tools": [READ, DISK, PATCH], "reasoning": {"summary": summary}}
    events, final = stream(client, script, **more)
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert shown(final.to_dict()["output"]) == shown(
        create(client, script, **more).to_dict()["output"]
    )
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == final.output_text
    kind = "reasoning_summary_text" if summary else "reasoning_text"
    thoughts = [event.delta for event in events if event.type == f"response.{kind}.delta"]
    assert bool(thoughts) == (script in ("thought", "call"))
    for item in final.output:
        if item.type == "function_call":
            assert item.arguments == '{"path": "a"}'
    pieces = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(pieces) == ('*** "Begin"\n+☃\n' if script == "patch" else "")


def test_tools_with_previous_response_id(client: OpenAI, played: Played) -> None:
    first = create(client, "call", tools=[READ], instructions="Be short.")
    *_, item = first.output
    assert item.type == "function_call"
    assert (item.name, json.loads(item.arguments)) == ("read", {"path": "a"})
    output: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "play done"}
    second = client.responses.create(
        model="any", previous_response_id=first.id, input=[output], tools=[READ]
    )
    assert second.output_text == SCRIPTS["done"]
    before, after = played.prompts[-2:]
    assert "Be short." in before
    assert "Be short." not in after
    assert '{"name": "read", "arguments"' in after.rpartition("I look.")[2]


def test_tools_with_explicit_items(client: OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "play calls"}]
    tools: Any = [READ, DISK]
    first = client.responses.create(model="any", input=items, tools=tools, store=False)
    one, other = first.output
    assert one.type == other.type == "function_call"
    assert (one.name, one.namespace) == ("read", None)
    assert (other.name, other.namespace) == ("read", "mcp__disk")
    items += [item.to_dict() for item in first.output]
    for each in (one, other):
        text = [{"type": "input_text", "text": "play done"}]
        items.append({"type": "function_call_output", "call_id": each.call_id, "output": text})
    second = client.responses.create(model="any", input=items, tools=tools, store=False)
    assert second.output_text == SCRIPTS["done"]


def test_only_new_items_are_evaluated(client: OpenAI) -> None:
    first = create(client, "text", instructions="Word. " * 100)
    items: list[Any] = [
        {"role": "user", "content": "play text"},
        *[item.to_dict() for item in first.output],
        {"role": "user", "content": "play done"},
    ]
    second = client.responses.create(model="any", input=items, instructions="Word. " * 100)
    assert first.usage is not None
    assert second.usage is not None
    n_new = second.usage.input_tokens - second.usage.input_tokens_details.cached_tokens
    assert n_new < second.usage.input_tokens - first.usage.input_tokens + 2


def test_custom_tools(client: OpenAI, played: Played) -> None:
    first = create(client, "patch", tools=[PATCH], tool_choice={"type": "custom", "name": "patch"})
    (item,) = first.output
    assert item.type == "custom_tool_call"
    assert item.input == '*** "Begin"\n+☃\n'
    assert "Lark grammar" in played.prompts[-1]
    output: Any = {
        "type": "custom_tool_call_output",
        "call_id": item.call_id,
        "output": "play done",
    }
    second = client.responses.create(model="any", previous_response_id=first.id, input=[output])
    assert second.output_text == SCRIPTS["done"]


def test_sealed_reasoning_comes_back(client: OpenAI, played: Played) -> None:
    include: Any = ["reasoning.encrypted_content"]
    more: Any = {"store": False, "include": include, "tools": [READ]}
    first = create(client, "call", **more)
    items = [item.to_dict() for item in first.output]
    items[0] = {"type": "reasoning", "encrypted_content": items[0]["encrypted_content"]}
    items.append(
        {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "play done"}
    )
    question: Any = [{"role": "user", "content": "a"}]
    client.responses.create(model="any", input=question + items, **more)
    assert "A file." in played.prompts[-1]


def test_parse(client: OpenAI) -> None:
    response = client.responses.parse(model="any", input="play person", text_format=Person)
    assert response.output_parsed == Person(name="Ann", age=3)
    _, final = stream(client, "person", text_format=Person)
    assert final.output_parsed == Person(name="Ann", age=3)


def test_async(server: RunningServer) -> None:
    async def run() -> str:
        url = f"{server.url}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            texts = ""
            events = await client.responses.create(model="any", input="play text", stream=True)
            async for event in events:
                if event.type == "response.output_text.delta":
                    texts += event.delta
            response = await client.responses.create(model="any", input="play text")
            assert response.output_text == texts
            return texts

    assert asyncio.run(run()) == SCRIPTS["text"]


def test_input_tokens(client: OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="any", input="play text", tools=[READ])
    usage = create(client, "text", tools=[READ]).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens


def test_input_items(client: OpenAI) -> None:
    listed = client.responses.input_items.list(create(client, "text").id)
    (item,) = listed.data
    assert item.type == "message"


def test_errors(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as unknown:
        create(client, "text", previous_response_id="resp_1")
    assert unknown.value.code == "previous_response_not_found"
    assert unknown.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as long:
        create(client, "text " * 9000)
    assert long.value.code == "context_length_exceeded"
    image: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="any", input=image)
    assert refused.value.param == "input[0].content[0]"


def test_a_cut_response_is_incomplete(client: OpenAI) -> None:
    more: Any = {"max_output_tokens": 24, "tools": [READ]}
    *_, last = client.responses.create(model="any", input="play call", stream=True, **more)
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[-1].to_dict()["status"] == "incomplete"
