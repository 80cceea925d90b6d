"""The suite's tools that ask the client for something, by both protocols."""

from __future__ import annotations

from typing import Any, Final

from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)

MISSING_CAPABILITY: Final = -32021
Answer = CallToolResult | InputRequiredResult


def _done(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=text)])


def _form(message: str, **properties: Any) -> ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(text: str, most: int = 100) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=most))


def _ask(state: str | None = None, **requests: Any) -> InputRequiredResult:
    return InputRequiredResult(input_requests=requests, request_state=state)


def _accepted(context: Context[Any, Any], key: str, field: str) -> Any:
    answer = (context.input_responses or {}).get(key)
    if not isinstance(answer, ElicitResult) or answer.action != "accept":
        return None
    return (answer.content or {}).get(field)


STRING: Final = {"type": "string"}


def mount_questions(server: MCPServer[Any]) -> None:
    _mount_2025(server)
    _mount_2026(server)
    _mount_rounds(server)

    @server.prompt(name="test_input_required_result_prompt", description="Asks first")
    async def prompt(ctx: Context[Any, Any]) -> Any:
        context = _accepted(ctx, "user_context", "context")
        if context is None:
            return _ask(user_context=_form("What context should the prompt use?", context=STRING))
        return f"Context: {context}"


def _mount_2025(server: MCPServer[Any]) -> None:
    async def form(ctx: Context[Any, Any], message: str, schema: dict[str, Any]) -> ElicitResult:
        answer: ElicitResult = await ctx.session.elicit_form(
            message=message, requested_schema=schema, related_request_id=ctx.request_context.request_id
        )
        return answer

    @server.tool(name="test_sampling", description="Asks the client's model")
    async def sampling(prompt: str, ctx: Context[Any, Any]) -> CallToolResult:
        message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
        answer = await ctx.session.create_message(  # pyright: ignore[reportDeprecated]
            messages=[message], max_tokens=100, related_request_id=ctx.request_context.request_id
        )
        return _done(f"LLM response: {getattr(answer.content, 'text', '')}")

    @server.tool(name="test_elicitation", description="Asks the user")
    async def elicitation(message: str, ctx: Context[Any, Any]) -> CallToolResult:
        properties = {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        }
        schema = {"type": "object", "properties": properties, "required": ["username", "email"]}
        answer = await form(ctx, message, schema)
        return _done(f"User response: action: {answer.action}, content: {answer.content}")

    @server.tool(name="test_elicitation_sep1034_defaults", description="Asks with defaults")
    async def defaults(ctx: Context[Any, Any]) -> CallToolResult:
        properties = {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        answer = await form(ctx, "Defaults", {"type": "object", "properties": properties})
        return _done(f"Elicitation completed: action={answer.action}, content={answer.content}")

    @server.tool(name="test_elicitation_sep1330_enums", description="Asks with choices")
    async def enums(ctx: Context[Any, Any]) -> CallToolResult:
        options = ["option1", "option2", "option3"]
        titled = [
            {"const": f"value{n}", "title": f"{word} Option"} for n, word in ((1, "First"), (2, "Second"))
        ]
        properties = {
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        }
        answer = await form(ctx, "Choices", {"type": "object", "properties": properties})
        return _done(f"Elicitation completed: action={answer.action}, content={answer.content}")


def _mount_2026(server: MCPServer[Any]) -> None:
    @server.tool(name="test_missing_capability", description="Needs a client that samples")
    async def missing(ctx: Context[Any, Any]) -> CallToolResult:
        capabilities = ctx.client_capabilities
        if capabilities is None or capabilities.sampling is None:
            raise MCPError(
                code=MISSING_CAPABILITY,
                message="the client has not declared sampling",
                data={"requiredCapabilities": {"sampling": {}}},
            )
        return _done("the client samples")

    @server.tool(name="test_streaming_elicitation", description="Asks by its answer")
    async def streaming(ctx: Context[Any, Any]) -> Answer:
        name = _accepted(ctx, "user_name", "name")
        if name is None:
            return _ask(user_name=_form("What is your name?", name=STRING))
        return _done(f"Hello, {name}!")

    @server.tool(name="test_input_required_result_elicitation", description="Asks for a name")
    async def elicitation(ctx: Context[Any, Any]) -> Answer:
        name = _accepted(ctx, "user_name", "name")
        if not isinstance(name, str):
            return _ask(user_name=_form("What is your name?", name=STRING))
        return _done(f"Hello, {name}!")

    @server.tool(name="test_input_required_result_sampling", description="Asks a model")
    async def sampling(ctx: Context[Any, Any]) -> Answer:
        answer = (ctx.input_responses or {}).get("capital_question")
        if answer is None:
            return _ask(capital_question=_sample("What is the capital of France?"))
        return _done(getattr(getattr(answer, "content", None), "text", str(answer)))

    @server.tool(name="test_input_required_result_list_roots", description="Asks for roots")
    async def roots(ctx: Context[Any, Any]) -> Answer:
        answer = (ctx.input_responses or {}).get("client_roots")
        if answer is None:
            return _ask(client_roots=ListRootsRequest())
        return _done(", ".join(str(root.uri) for root in getattr(answer, "roots", ())))

    @server.tool(
        name="test_input_required_result_capabilities", description="Asks what the client can answer"
    )
    async def capable(ctx: Context[Any, Any]) -> Answer:
        capabilities = ctx.client_capabilities
        requests: dict[str, Any] = {}
        if capabilities is not None and capabilities.sampling is not None:
            requests["greeting"] = _sample("Generate a greeting")
        if capabilities is not None and capabilities.elicitation is not None:
            requests["user_name"] = _form("What is your name?", name=STRING)
        if not requests or set(requests) <= set(ctx.input_responses or {}):
            return _done("nothing more to ask")
        return _ask(**requests)


def _mount_rounds(server: MCPServer[Any]) -> None:
    boolean = {"type": "boolean"}

    @server.tool(name="test_input_required_result_request_state", description="Carries a state")
    async def state(ctx: Context[Any, Any]) -> Answer:
        if ctx.request_state is None or "confirm" not in (ctx.input_responses or {}):
            return _ask("asked", confirm=_form("Please confirm", ok=boolean))
        return _done("state-ok" if ctx.request_state == "asked" else "another state")

    @server.tool(name="test_input_required_result_tampered_state", description="Carries a sealed state")
    async def tampered(ctx: Context[Any, Any]) -> Answer:
        if ctx.request_state is None:
            return _ask("asked", confirm=_form("Please confirm", ok=boolean))
        return _done("state-ok")

    @server.tool(name="test_input_required_result_multiple_inputs", description="Asks three things")
    async def multiple(ctx: Context[Any, Any]) -> Answer:
        wanted = {
            "user_name": _form("What is your name?", name=STRING),
            "greeting": _sample("Generate a greeting", 50),
            "client_roots": ListRootsRequest(),
        }
        if ctx.request_state is None or not set(wanted) <= set(ctx.input_responses or {}):
            return _ask("asked", **wanted)
        return _done("all answered")

    @server.tool(name="test_input_required_result_multi_round", description="Asks twice")
    async def rounds(ctx: Context[Any, Any]) -> Answer:
        if ctx.request_state == "second":
            color = _accepted(ctx, "step2", "color")
            if color is not None:
                return _done(f"color {color}")
        if ctx.request_state is not None and _accepted(ctx, "step1", "name") is not None:
            return _ask("second", step2=_form("Step 2: What is your favorite color?", color=STRING))
        if ctx.request_state == "second":
            return _ask("second", step2=_form("Step 2: What is your favorite color?", color=STRING))
        return _ask("first", step1=_form("Step 1: What is your name?", name=STRING))
