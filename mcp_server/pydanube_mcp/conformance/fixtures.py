"""The suite's tools, resources and prompts that ask nobody anything."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Final

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    SetLevelRequestParams,
    TextContent,
    TextResourceContents,
)
from pydantic import Field

from pydanube_mcp.conformance.questions import mount_questions

PNG: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
# 44 bytes of header and no samples.
WAV: Final = (
    b"RIFF"
    + (36).to_bytes(4, "little")
    + b"WAVEfmt "
    + (16).to_bytes(4, "little")
    + (1).to_bytes(2, "little")
    + (1).to_bytes(2, "little")
    + (8000).to_bytes(4, "little")
    + (8000).to_bytes(4, "little")
    + (1).to_bytes(2, "little")
    + (8).to_bytes(2, "little")
    + b"data"
    + bytes(4)
)
SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _image() -> ImageContent:
    return ImageContent(type="image", data=base64.b64encode(PNG).decode(), mime_type="image/png")


def _resource(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    )


def mount(server: MCPServer[Any]) -> None:
    """Register everything that the suite looks for."""
    _mount_contents(server)
    _mount_progress(server)
    _mount_resources(server)
    _mount_prompts(server)
    mount_questions(server)
    server._lowlevel_server.add_request_handler("logging/setLevel", SetLevelRequestParams, _set_level)


async def _set_level(context: ServerRequestContext[Any, Any], params: SetLevelRequestParams) -> EmptyResult:
    """Ours logs to stderr; what the fixtures log is wanted at every level."""
    return EmptyResult()


def _mount_contents(server: MCPServer[Any]) -> None:
    @server.tool(name="test_simple_text", description="Answers with text")
    def simple_text() -> CallToolResult:
        return CallToolResult(content=[_text("This is a simple text response for testing.")])

    @server.tool(name="test_image_content", description="Answers with an image")
    def image() -> CallToolResult:
        return CallToolResult(content=[_image()])

    @server.tool(name="test_audio_content", description="Answers with sound")
    def audio() -> CallToolResult:
        data = base64.b64encode(WAV).decode()
        return CallToolResult(content=[AudioContent(type="audio", data=data, mime_type="audio/wav")])

    @server.tool(name="test_embedded_resource", description="Answers with a resource")
    def embedded() -> CallToolResult:
        return CallToolResult(
            content=[_resource("test://embedded-resource", "This is an embedded resource content.")]
        )

    @server.tool(name="test_multiple_content_types", description="Answers with three kinds of content")
    def mixed() -> CallToolResult:
        body = json.dumps({"test": "data", "value": 123})
        return CallToolResult(
            content=[
                _text("Multiple content types test:"),
                _image(),
                _resource("test://mixed-content-resource", body, "application/json"),
            ]
        )

    @server.tool(name="test_error_handling", description="Always fails")
    def fails() -> CallToolResult:
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool(name="json_schema_2020_12_tool", description="Tool with JSON Schema 2020-12 features")
    def schema(name: str = "") -> CallToolResult:
        return CallToolResult(content=[_text(name)])

    # The SDK derives schemas from signatures only; this one cannot be said by a signature.
    tool = server._tool_manager.get_tool("json_schema_2020_12_tool")
    assert tool is not None
    tool.parameters = SCHEMA

    @server.tool(name="test_x_mcp_header", description="A parameter that is a header too")
    def header(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    ) -> CallToolResult:
        return CallToolResult(content=[_text(region)])


def _mount_progress(server: MCPServer[Any]) -> None:
    @server.tool(name="test_tool_with_progress", description="Says how far it is")
    async def progress(ctx: Context[Any, Any]) -> CallToolResult:
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100, f"{done} of 100")
            await anyio.sleep(0.05)
        return CallToolResult(content=[_text("done")])

    @server.tool(name="test_tool_with_logging", description="Logs while it runs")
    async def logs(ctx: Context[Any, Any]) -> CallToolResult:
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(line)  # pyright: ignore[reportDeprecated]
            await anyio.sleep(0.05)
        return CallToolResult(content=[_text("done")])

    @server.tool(name="test_logging_tool", description="Logs where it was asked to")
    async def logs_if_asked(ctx: Context[Any, Any]) -> CallToolResult:
        await ctx.info("logged")  # pyright: ignore[reportDeprecated]
        return CallToolResult(content=[_text("done")])

    @server.tool(name="test_reconnection", description="Closes its stream while it runs")
    async def reconnection(ctx: Context[Any, Any]) -> CallToolResult:
        await ctx.close_sse_stream()
        await anyio.sleep(0.1)
        return CallToolResult(content=[_text("Reconnection test completed")])

    @server.tool(name="test_trigger_tool_change", description="Says that the tools have changed")
    async def tools_changed(ctx: Context[Any, Any]) -> CallToolResult:
        await ctx.notify_tools_changed()
        return CallToolResult(content=[_text("told")])

    @server.tool(name="test_trigger_prompt_change", description="Says that the prompts have changed")
    async def prompts_changed(ctx: Context[Any, Any]) -> CallToolResult:
        await ctx.notify_prompts_changed()
        return CallToolResult(content=[_text("told")])


def _mount_resources(server: MCPServer[Any]) -> None:
    @server.resource("test://static-text", mime_type="text/plain", description="A text")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png", description="A picture")
    def static_binary() -> bytes:
        return PNG

    @server.resource("test://watched-resource", mime_type="text/plain", description="Can be subscribed to")
    def watched() -> str:
        return "Watched resource content"

    @server.resource("test://template/{id}/data", mime_type="application/json", description="By its id")
    def template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _mount_prompts(server: MCPServer[Any]) -> None:
    @server.prompt(name="test_simple_prompt", description="A simple prompt")
    def simple() -> str:
        return "This is a simple prompt for testing."

    @server.prompt(name="test_prompt_with_arguments", description="A prompt with two arguments")
    def with_arguments(arg1: str, arg2: str) -> str:
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt(name="test_prompt_with_embedded_resource", description="A prompt with a resource")
    def with_resource(resourceUri: str) -> list[UserMessage]:
        return [
            UserMessage(_resource(resourceUri, "Embedded resource content for testing.")),
            UserMessage("Please process the embedded resource above."),
        ]

    @server.prompt(name="test_prompt_with_image", description="A prompt with a picture")
    def with_image() -> list[UserMessage]:
        return [UserMessage(_image()), UserMessage("Please analyze the image above.")]
