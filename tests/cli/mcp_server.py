"""An MCP server for tests, of the package `mcp`: over stdio, or over HTTP with the argument `http`:
then it prints its port.

With the argument `broken`, it ends at once with a line on stderr.
"""

from __future__ import annotations

import socket
import sys

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.types import ImageContent, TextContent

server = MCPServer("the shop")


@server.tool()
def price(item: str, count: int = 1) -> str:
    """Return the price of an item."""
    if item == "gold":
        raise ValueError("not for sale")
    return f"{count} {item}: {3 * count} coins"


@server.tool(name="shop/stock")
def stock() -> dict[str, int]:
    """Return what is there."""
    return {"apples": 5}


@server.tool()
def picture() -> list[TextContent | ImageContent]:
    """Return a picture."""
    image = ImageContent(type="image", data="aGk=", mime_type="image/png")
    return [TextContent(type="text", text="a cat"), image]


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await anyio.sleep(seconds)
    return "waited"


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else ""
    if argument == "broken":
        sys.exit("there is no key")
    if argument == "http":
        import uvicorn

        with socket.create_server(("127.0.0.1", 0)) as listener:
            sys.stdout.write(f"{listener.getsockname()[1]}\n")
            sys.stdout.flush()
            config = uvicorn.Config(server.streamable_http_app(), log_level="error")
            uvicorn.Server(config).run(sockets=[listener])
    else:
        server.run("stdio")
