"""Prompts: the runbooks as instructions for a model, with completion of their arguments."""

from __future__ import annotations

from collections.abc import Mapping

from mcp import MCPError
from mcp.types import INVALID_PARAMS, GetPromptResult, Prompt, PromptArgument, PromptMessage, TextContent
from pydanube_admin.runbooks.runbook import all_runbooks
from pydanube_admin.runbooks.running import values_of
from pydanube_admin.runbooks.texts import text
from pydanube_core.errors import InvalidArgument
from pydanube_core.spelling import close_names

from pydanube_mcp.fencing import MAX_PLAIN_CHARS, MOST_WORDS, fenced, is_plain


def prompt_list() -> list[Prompt]:
    return [
        Prompt(
            name=runbook.name,
            title=runbook.label,
            description=runbook.summary_naming(),
            arguments=[
                PromptArgument(name=each.name, description=each.description, required=each.required)
                for each in runbook.parameters
            ],
        )
        for runbook in all_runbooks().values()
    ]


def get_prompt(name: str, arguments: Mapping[str, str] | None) -> GetPromptResult:
    """Return the runbook with the values filled in. The values are unchecked data from the user.

    Raises:
        MCPError: -32602 for a name or an argument that does not exist, and for a required one that is
            missing.
    """
    runbook = all_runbooks().get(name)
    if runbook is None:
        close = close_names(name, all_runbooks())
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        what = f"prompt {name!r}" if is_plain(name) else "such prompt"
        raise MCPError(code=INVALID_PARAMS, message=f"there is no {what}{hint}")
    given = arguments or {}
    for key, value in given.items():
        if runbook.parameter(key) is not None and not is_plain(value):
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"{name}: {key} must be a name: at most {MAX_PLAIN_CHARS} letters, digits and signs, without "
                f"spaces and with at most {MOST_WORDS} words, since a model reads it as an instruction. "
                "For other names, write to the model yourself",
            )
    try:
        values = values_of(runbook, given)
    except InvalidArgument as error:
        raise MCPError(
            code=INVALID_PARAMS, message=f"{name}: {fenced(error.to_dict(), given=given)['message']}"
        ) from error
    message = PromptMessage(
        role="user", content=TextContent(type="text", text=text(runbook, values, by_tools=True))
    )
    return GetPromptResult(description=runbook.summary_naming(), messages=[message])


def choices_of(prompt: str, argument: str) -> tuple[str, ...] | None:
    """Return the values that an argument may have, or None if it is a name in the cluster."""
    runbook = all_runbooks().get(prompt)
    parameter = runbook.parameter(argument) if runbook else None
    return parameter.choices if parameter is not None and parameter.choices else None
