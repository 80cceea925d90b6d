"""`danube runbook NAME --topic T …`: carry out a runbook step by step, with its findings and changes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydanube_admin import runbooks
from pydanube_admin.engine.declaration import declarations
from pydanube_admin.runbooks.runbook import Parameter, Runbook
from pydanube_admin.runbooks.running import Outcome, run
from pydanube_core.errors import CODES, ConditionNotMet

from pydanube_cli.answers import consents
from pydanube_cli.command import Command, Common
from pydanube_cli.parameters import option
from pydanube_cli.render import cell, print_json, print_pairs, print_table

_ATTENTION: Final = "!"


class _Runbooks:
    """The word `runbook`: a list, or the command of one runbook."""

    def main(self, words: str, args: Sequence[str]) -> int:
        at = next((index for index, word in enumerate(args) if not word.startswith("-")), None)
        if at is None or args[at] == "help":
            _list()
            return 0 if set(args) & {"--help", "-h"} or not args else 2
        book = runbooks.get(args[at])
        rest = [*args[:at], *args[at + 1 :]]
        return command_of_runbook(book).main(f"{words} {book.name}", rest)


runbook = _Runbooks()


def _list() -> None:
    print("Usage: danube runbook NAME [--PARAMETER VALUE]… [OPTIONS]\n")
    print(
        "Looks at the facts that a task needs, in order. Each change is shown and needs a confirmation first.\n"
    )
    print("Runbooks:")
    for book in runbooks.all().values():
        print(f"  {book.name:<26}{book.summary_naming(str.upper)}")
    print(
        "\nEach takes --json, --timeout, --broker (--service-addr), --admin, --cluster and --as. See NAME --help."
    )
    print("\nExamples:\n  danube runbook diagnose_consumer_lag --topic orders --subscription billing")


def command_of_runbook(book: Runbook) -> Command:
    """Return the command of one runbook."""
    example = "".join(
        f" --{each.name.replace('_', '-')} {each.default or (each.choices or (each.name,))[0]}"
        for each in book.parameters
        if each.required
    )
    parameters = [_parameter(each) for each in book.parameters]
    for name, flag, text in (
        ("option_yes", "--yes", "Make the changes it shows without a confirmation."),
        ("option_check", "--check", "Exit 6 if something needs attention."),
        ("option_text", "--show", "Print the steps, and carry out none."),
    ):
        annotation = Annotated[bool, option(flag, help=text)]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        )
    return Command(
        partial(_run, book=book),
        examples=[f"danube runbook {book.name}{example}"],
        parameters=parameters,
        summary=book.summary_naming(str.upper),
    )


def _parameter(parameter: Parameter) -> inspect.Parameter:
    kind: Any = Literal[parameter.choices] if parameter.choices else str
    default = f" [default: {parameter.default}]" if parameter.default else ""
    info = option(
        f"--{parameter.name.replace('_', '-')}",
        help=parameter.description + default,
        metavar=None if parameter.choices else "TEXT",
    )
    required = parameter.required
    return inspect.Parameter(
        f"arg_{parameter.name}",
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, info],
    )


def _run(
    *, book: Runbook, common: Common, option_yes: bool, option_check: bool, option_text: bool, **given: Any
) -> int:
    values = {name.removeprefix("arg_"): value for name, value in given.items() if value is not None}
    if option_text:
        print(runbooks.text(book, values), end="")
        return 0

    def approve(operation: str, plan: Mapping[str, Any]) -> bool:
        if option_yes:
            return True
        if common.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return False
        return consents(declarations()[operation], plan["arguments"], plan)

    outcomes = []
    for outcome in run(book, values, call=common.call, approve=approve):
        outcomes.append(outcome)
        if not common.as_json:
            _show(len(outcomes), outcome)
    if common.as_json:
        print_json({"runbook": book.name, "arguments": values, "steps": [_body(each) for each in outcomes]})
    failed = next((each.error for each in outcomes if each.error is not None), None)
    if failed is not None:
        raise failed
    if any(each.declined for each in outcomes):
        return 4
    attention = option_check and not all(each.fine for each in outcomes)
    return CODES[ConditionNotMet.code].exit if attention else 0


def _show(number: int, outcome: Outcome) -> None:
    print(f"{number}. {outcome.title}")
    if outcome.advice:
        print(f"   {outcome.advice}")
    for line in outcome.commands:
        print(f"   $ {line}")
    if outcome.declined:
        print("   not done: it changes something, and was not confirmed (--yes confirms)")
    if outcome.result is not None:
        _show_result(outcome)
    for verdict in outcome.verdicts:
        print(f"   {'ok' if verdict.fine else _ATTENTION}  {verdict.text}")
    print()


def _show_result(outcome: Outcome) -> None:
    assert outcome.result is not None
    result = outcome.result
    if isinstance(items := result.get("items"), list):
        if items:
            print_table(items[:20], outcome.step.show or None)
        return
    for finding in result.get("findings", ()):
        print(f"   {finding['severity']}: {finding['rule']}: {cell('', finding['summary'])}")
        evidence = ", ".join(f"{name} {cell(name, value)}" for name, value in finding["evidence"].items())
        if evidence:
            print(f"     evidence: {evidence}")
        if ruled_out := [each["rule"] for each in finding["ruled_out"]]:
            print(f"     ruled out: {', '.join(ruled_out)}")
        for step in finding["next"][:2]:
            print(f"     $ {cell('', step['command'])}")
    shown = {name: result[name] for name in outcome.step.show if name in result and name != "findings"}
    print_pairs(
        shown or {name: value for name, value in result.items() if not isinstance(value, (list, dict))}
    )


def _body(outcome: Outcome) -> dict[str, Any]:
    return {
        "id": outcome.step.id,
        "title": outcome.title,
        "operation": outcome.step.operation,
        "arguments": dict(outcome.arguments),
        "result": outcome.result,
        "checks": [{"fine": verdict.fine, "text": verdict.text} for verdict in outcome.verdicts],
        "declined": outcome.declined,
        "advice": outcome.advice or None,
        "commands": list(outcome.commands),
        "error": outcome.error.to_dict() if outcome.error is not None else None,
    }
