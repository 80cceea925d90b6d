"""Prompts: the runbooks as instructions for a model, with completion of their arguments."""

from __future__ import annotations

from collections.abc import Mapping

from mcp import MCPError
from mcp.types import INVALID_PARAMS, GetPromptResult, Prompt, PromptArgument, PromptMessage, TextContent
from pydanube_admin.runbooks.runbook import all_runbooks
from pydanube_admin.runbooks.texts import text
from pydanube_core.spelling import close_names, shown

from pydanube_mcp.fencing import is_plain

MAX_VALUE_CHARS = 512


def prompt_list() -> list[Prompt]:
    return [
        Prompt(
            name=runbook.name,
            title=runbook.name.replace("_", " ").capitalize(),
            description=_plain(runbook.summary),
            arguments=[
                PromptArgument(name=each.name, description=each.description, required=each.required)
                for each in runbook.parameters
            ],
        )
        for _, runbook in sorted(all_runbooks().items())
    ]


def get_prompt(name: str, arguments: Mapping[str, str] | None) -> GetPromptResult:
    """Return the runbook with the values filled in; the values are data that somebody typed.

    Raises:
        MCPError: -32602 for a name or an argument that does not exist, and for a required one that is missing.
    """
    runbook = all_runbooks().get(name)
    if runbook is None:
        close = close_names(name, all_runbooks())
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise MCPError(code=INVALID_PARAMS, message=f"there is no prompt {shown(name)!r}{hint}")
    values = {each.name: each.default for each in runbook.parameters if each.default is not None}
    for key, value in (arguments or {}).items():
        parameter = runbook.parameter(key)
        if parameter is None:
            names = ", ".join(each.name for each in runbook.parameters) or "no arguments"
            raise MCPError(
                code=INVALID_PARAMS, message=f"{name} has no argument {shown(key)!r}; it takes {names}"
            )
        if len(value) > MAX_VALUE_CHARS or not is_plain(value):
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"{name}: {key} must be a name: at most {MAX_VALUE_CHARS} letters, digits and signs, without "
                "spaces, since it becomes part of what a model is told; ask the model about other names yourself",
            )
        if parameter.choices and value not in parameter.choices:
            raise MCPError(
                code=INVALID_PARAMS, message=f"{name}: {key} is one of {', '.join(parameter.choices)}"
            )
        values[key] = value
    for parameter in runbook.parameters:
        if parameter.required and parameter.name not in values:
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"{name}: the argument {parameter.name!r} is required: {parameter.description}",
            )
    message = PromptMessage(
        role="user", content=TextContent(type="text", text=text(runbook, values, by_tools=True))
    )
    return GetPromptResult(description=_plain(runbook.summary), messages=[message])


def choices_of(prompt: str, argument: str) -> tuple[str, ...] | None:
    """Return the values that an argument may have; None where it is a name in the cluster."""
    runbook = all_runbooks().get(prompt)
    parameter = runbook.parameter(argument) if runbook else None
    return parameter.choices if parameter is not None and parameter.choices else None


def _plain(summary: str) -> str:
    return summary.replace("{", "").replace("}", "")
