"""The flags of `lamella chat` for tools, reasoning and colors.

Tested by tests/cli/test_chat_tools.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from ..base.utf8 import read_text
from .mcp_config import mcp_config, mcp_configs
from .tool_file import tools_of_file
from .toolbox import ChatTool, ToolBox

DISPLAY_FLAGS: Final = ("--color",)


def add_display_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags of what an answer looks like."""
    color = group.add_argument(
        *("-co", "--color"),
        nargs="?",
        const="on",
        default="auto",
        choices=("on", "off", "auto"),
        help="dim reasoning and the results of tools (auto: on a terminal with colors)",
    )
    vars(color).update(env="COLOR")


def add_tool_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of tools. `opened_tools` reads them."""
    group = parser.add_argument_group(
        "tools", "functions that the model may call; each call is shown and asked for"
    )
    add = group.add_argument
    add(
        "--tools",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file: its public functions become tools; may be repeated",
    )
    add(
        "--mcp",
        action="append",
        default=[],
        metavar="COMMAND",
        help="the tools of an MCP server: a command in quotes, or the URL of one with streamable "
        "HTTP; may be repeated",
    )
    add(
        "--mcp-servers-config",
        metavar="FILE",
        help='MCP servers in a JSON file: {"mcpServers": {NAME: {"command": ..., "args": [...]}}}',
    )
    add("--mcp-servers-json", metavar="JSON", help="the same as JSON text")
    add("-y", "--yes", action="store_true", help="call tools without a question")


@contextmanager
def opened_tools(args: argparse.Namespace) -> Iterator[ToolBox]:
    """The tools that flags name. Connections to servers end with the block.

    Raises:
        RequestError: a file or a configuration is broken, or a server cannot be reached.
    """
    if not hasattr(args, "mcp"):  # of a command without these flags
        yield ToolBox()
        return
    tools: list[ChatTool] = []
    for file in args.tools:
        tools += tools_of_file(Path(file).expanduser())
    servers = [mcp_config(text) for text in args.mcp]
    if args.mcp_servers_config is not None:
        servers += mcp_configs(read_text(args.mcp_servers_config))
    if args.mcp_servers_json is not None:
        servers += mcp_configs(args.mcp_servers_json)
    with ExitStack() as stack:
        if servers:
            from .mcp_servers import McpServers  # noqa: PLC0415 - imports asyncio

            tools += stack.enter_context(McpServers(servers)).tools
        yield ToolBox(tools)
