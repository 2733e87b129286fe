"""The tools of assistants behind the official SDK: over standard input and output, and over HTTP."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from trainmaster import __version__
from trainmaster.api.mcp.tools import INSTRUCTIONS, TOOLS, Tool
from trainmaster.spec.errors import MissingPartError, NotFoundError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.api.mcp.tool_context import ToolContext

#: Calls at the same time: each has a thread, and a server has others for what these ask of it.
_MOST_CALLS: Final = 8


def need_sdk() -> None:
    """Refuse to go on without the SDK.

    Raises:
        MissingPartError: it is not installed.
    """
    if find_spec("mcp") is None:
        raise MissingPartError("mcp: the SDK is not installed", "Run: pip install 'trainmaster[mcp]'")


def make_server(context_of: Callable[[Any], ToolContext]) -> Any:  # noqa: ANN401 - of the SDK, which may be missing
    """A server of the SDK with all tools.

    Args:
        context_of: whom an assistant asks, by the HTTP request that it came with; None without one.
    """
    from anyio import CapacityLimiter, to_thread
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult, ListToolsResult, TextContent
    from mcp_types import Tool as Description

    limiter = CapacityLimiter(_MOST_CALLS)

    async def list_tools(call: Any, _: Any) -> Any:  # noqa: ANN401 - of the SDK, as below
        context = context_of(call.request)
        found = [
            _described(Description, tool, context) for tool in TOOLS.values() if tool.scope in context.scopes
        ]
        return ListToolsResult(tools=found)

    async def call_tool(call: Any, asked: Any) -> Any:  # noqa: ANN401
        work = functools.partial(_called, context_of(call.request), asked.name, asked.arguments or {})
        answer, is_error = await to_thread.run_sync(work, limiter=limiter)
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)
        structured = None if isinstance(answer, str) else json.loads(text)
        content: list[Any] = [TextContent(type="text", text=text)]
        return CallToolResult(content=content, structured_content=structured, is_error=is_error)

    return Server(
        "trainmaster",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _described(kind: Any, tool: Tool, context: ToolContext) -> Any:  # noqa: ANN401 - of the SDK
    from mcp_types import ToolAnnotations

    hints = ToolAnnotations(
        read_only_hint=tool.scope == "read",
        destructive_hint=tool.name == "cancel",
        idempotent_hint=tool.name != "run",
        open_world_hint=False,
    )
    return kind(
        name=tool.name,
        description=tool.says,
        input_schema=tool.takes_of(context),
        output_schema=tool.schemas[1],
        annotations=hints,
    )


def _called(context: ToolContext, name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any] | str, bool]:
    """The answer of a tool; or what was wrong, for the assistant to mend."""
    try:
        if name not in TOOLS:
            raise NotFoundError(f"there is no tool {name!r}", f"There are {', '.join(TOOLS)}.")
        return TOOLS[name].call(context, arguments), False
    except TrainmasterError as error:
        return f"{error.args[0]}\n{error.hint}".strip(), True


def serve_stdio(context: ToolContext) -> None:
    """Answer one assistant over standard input and output until it goes.

    Raises:
        MissingPartError: the SDK is not installed.
    """
    need_sdk()
    import anyio
    from mcp.server.stdio import stdio_server

    server = make_server(lambda _: context)

    async def work() -> None:
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options())

    anyio.run(work)
