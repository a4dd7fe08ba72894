"""MCP servers: configurations, connections over stdio and HTTP, calls, errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from lamella.base.errors import RequestError
from lamella.cli.mcp_config import McpConfig, mcp_config, mcp_configs
from lamella.cli.mcp_servers import INSTALL, McpServers
from lamella.cli.toolbox import ToolBox

PROGRAM = (sys.executable, str(Path(__file__).parent / "mcp_server.py"))


@pytest.fixture(scope="module")
def box() -> Iterator[ToolBox]:
    with McpServers([McpConfig(name="shop", command=PROGRAM)]) as servers:
        yield ToolBox(servers.tools)


def test_tools_of_a_server(box: ToolBox) -> None:
    price, stock, picture, wait = box
    assert [tool.tool.name for tool in (stock, picture, wait)] == ["shop_stock", "picture", "wait"]
    assert (price.tool.description, price.source) == ("Return the price of an item.", "the shop")
    assert price.tool.parameters["properties"]["item"]["type"] == "string"
    assert price.tool.parameters["required"] == ["item"]


def test_results_and_errors(box: ToolBox) -> None:
    assert box.call("price", '{"item": "apple", "count": 2}') == ("2 apple: 6 coins", False)
    assert box.call("shop_stock", "")[0].replace("\n", "").replace(" ", "") == '{"apples":5}'
    assert box.call("picture", "{}") == ("a cat\n[image: not a text]", False)
    text, is_error = box.call("price", '{"count": 2}')
    assert "Field required" in text
    assert is_error
    assert box.call("price", '{"item": "gold"}').is_error
    assert box.call("price", "[1]") == ("invalid arguments for price: not an object", True)
    assert box.call("price", "{") == (
        "invalid arguments for price: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
        True,
    )


def test_ctrl_c_cancels_a_call_and_the_next_one_works(box: ToolBox) -> None:
    begin = time.monotonic()
    presser = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        call_while(presser, box)
    assert time.monotonic() - begin < 50
    assert box.call("wait", '{"seconds": 0}') == ("waited", False)


def call_while(presser: threading.Timer, box: ToolBox) -> None:
    presser.start()
    box.call("wait", '{"seconds": 100}')


def test_a_server_with_http() -> None:
    process = subprocess.Popen([*PROGRAM, "http"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        with McpServers([McpConfig(name="shop", url=url, headers={"X-Key": "1"})]) as servers:
            assert (
                ToolBox(servers.tools).call("price", '{"item": "pear"}').text.startswith("1 pear")
            )
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("config", "begin", "end"),
    [
        (McpConfig(name="a", command=("nothing",)), "there is no program", "'nothing'"),
        (McpConfig(name="a", command=(*PROGRAM, "broken")), "MCPError", "  there is no key"),
        (McpConfig(name="a", url="http://127.0.0.1:9/mcp"), "ConnectError: All", "failed"),
    ],
)
def test_servers_that_cannot_be_reached(config: McpConfig, begin: str, end: str) -> None:
    good = McpConfig(name="shop", command=PROGRAM)  # it ends with the other one
    configs = [good, config] if "broken" in config.command else [config]
    with pytest.raises(RequestError) as caught, McpServers(configs):
        pass
    assert str(caught.value).startswith(f"MCP server a: {begin}")
    assert str(caught.value).endswith(end)


def test_the_error_names_the_versions_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    (wanted,) = project["project"]["optional-dependencies"]["mcp"]
    assert f"pip install '{wanted}'" in INSTALL


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(RequestError, match="pip install 'mcp"):
        McpServers([])


def test_a_command_or_a_url() -> None:
    assert mcp_config("npx -y 'a b'").command == ("npx", "-y", "a b")
    assert mcp_config("https://host/mcp").url == "https://host/mcp"
    for text in ("", "npx 'a"):
        with pytest.raises(RequestError, match="--mcp"):
            mcp_config(text)


def test_configurations_of_other_programs() -> None:
    text = """{"mcpServers": {
        "files": {"command": "npx", "args": ["-y", "fs"], "env": {"DEPTH": 3}},
        "web": {"type": "http", "url": "https://host/mcp", "headers": {"Authorization": "x"}},
        "off": {"command": "rm", "disabled": true}
    }}"""
    files, web = mcp_configs(text)
    assert files == McpConfig(name="files", command=("npx", "-y", "fs"), env={"DEPTH": "3"})
    assert web == McpConfig(name="web", url="https://host/mcp", headers={"Authorization": "x"})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", 'has no object "mcpServers"'),
        ("{}", 'has no object "mcpServers"'),
        ('{"mcpServers": {"a": {}}}', 'mcpServers.a must have a "command" or a "url", found {}'),
        ('{"mcpServers": {"a": 3}}', 'mcpServers.a must have a "command" or a "url", found 3'),
        (
            '{"mcpServers": {"a": {"command": "x", "args": "y"}}}',
            "mcpServers.a.args must be a list",
        ),
        (
            '{"mcpServers": {"a": {"command": "x", "env": []}}}',
            "mcpServers.a.env must be an object",
        ),
        (
            '{"mcpServers": {"a": {"url": "x", "headers": {"a": {}}}}}',
            "mcpServers.a.headers must be",
        ),
    ],
)
def test_invalid_configurations(text: str, complaint: str) -> None:
    with pytest.raises(RequestError) as caught:
        mcp_configs(text)
    assert complaint in str(caught.value)
