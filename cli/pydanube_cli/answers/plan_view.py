"""Plans as people read them, and the question whether to do what one says."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from pydanube_admin.engine.operation import Operation

from pydanube_cli.render import cell, human_bytes, print_json

MAX_DIFF_LINES: Final = 30


def consents(operation: Operation, arguments: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Show the plan on stderr and ask."""
    describe(operation, arguments, plan)
    undo = "it can be undone for a while" if plan.get("reversible") else "this cannot be undone"
    print(f"{undo}. Type yes to do it: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def describe(operation: Operation, arguments: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Print the plan on stderr."""
    would = "would destroy" if plan.get("effect") == "destroy" else "would touch"
    print(f"{operation.command_line(arguments)} {would}: {_radius(plan)}", file=sys.stderr)
    if plan.get("later"):
        print(f"{plan['later']}.", file=sys.stderr)
    for line in _diff_lines(plan):
        print(line, file=sys.stderr)


def show_plan(
    operation: Operation, arguments: Mapping[str, Any], plan: Mapping[str, Any], *, as_json: bool
) -> None:
    """On stdout, with the command that does it."""
    if as_json:
        print_json(plan)
        return
    print(f"{plan['operation']} would touch: {_radius(plan)}")
    if plan.get("later"):
        print(f"{plan['later']}.")
    for line in _diff_lines(plan):
        print(line)
    print(
        f"it {'can' if plan.get('reversible') else 'cannot'} be undone. Until {plan['expires_at']}, to do exactly this:"
    )
    print(f"  {operation.command_line(arguments)} --plan-token {plan['plan_token']}")


def _radius(preview: Mapping[str, Any]) -> str:
    """`1 topic, 2 subscriptions, 1,200 messages, 3.4 MiB`."""
    parts = [
        human_bytes(count) if name == "bytes" else f"{count:,} {name[:-1] if count == 1 else name}"
        for name, count in preview["blast_radius"].items()
        if count
    ]
    return ", ".join(parts) or "nothing that holds data"


def _diff_lines(plan: Mapping[str, Any]) -> list[str]:
    """`  topics/default/orders/policies/max_publish_rate: – → 1000`, one a difference."""
    lines = [
        f"  {cell('path', change.get('path'))}: {cell('', change.get('before'))} → {cell('', change.get('after'))}"
        for change in plan["diff"][:MAX_DIFF_LINES]
    ]
    more = len(plan["diff"]) - len(lines)
    return [*lines, f"  and {more} more"] if more > 0 else lines
