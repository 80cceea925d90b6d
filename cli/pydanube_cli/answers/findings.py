"""A diagnosis as people read it: the verdict, then each finding with its numbers and the next command."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, Final

from pydanube_cli.failures import printable
from pydanube_cli.render import cell

WIDTH: Final = 80


def print_diagnosis(result: Mapping[str, Any]) -> None:
    """Nothing is cut but lines: commands stay whole, since they are there to be pasted."""
    subject = ", ".join(f"{name} {cell(name, value)}" for name, value in result["subject"].items())
    print(_wrapped(f"{result['verdict']}: {subject}", ""))
    for finding in result["findings"]:
        print()
        print(f"{finding['severity']}  {printable(finding['rule'])}  ({finding['confidence']:.0%} sure)")
        print(_wrapped(finding["summary"], "  "))
        numbers = [
            f"{name}={cell(name, value)}" for name, value in finding["evidence"].items() if value is not None
        ]
        print(_wrapped("evidence: " + "  ".join(numbers), "  "))
        for name, value in finding["untrusted"].items():
            print(_wrapped(f"written by others: {name}={cell(name, value)}", "  "))
        for unseen in finding["unobservable"]:
            print(_wrapped(f"not to be seen from here: {unseen}", "  "))
        for call in finding["next"]:
            print(_wrapped(f"next: {call['why']}", "  "))
            print(f"    {printable(call['command'])}")
    if result["omitted"]:
        print(f"\nand {result['omitted']} findings more: --json has the counts by rule")
    if not result["findings"]:
        print("nothing found")
    for unseen in result["unobservable"]:
        print(_wrapped(f"not looked at: {unseen}", ""))


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        printable(text), WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False
    )
