"""The result of a benchmark: medians over the runs, sums of the verified counts, ratios to the raw figures.

Its fields are those of docs/interface.md#12-objects-metrics-benchmarks-make.

A condition of `--assert` compares figures of it by their dotted names. It is checked and computed here,
without `eval`:

    verified.missing == 0
    median.messages_per_s >= 500000 and median.p99_ms < 10
    median.p50_ms <= raw.fdatasync_p50_ms + 0.9
    runs[0].messages_per_s > 0
"""

from __future__ import annotations

import ast
import operator
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from pydanube_core.errors import InvalidArgument

from pydanube_cli.runtime import installed_version

_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Expression:
    """A parsed condition of comparisons of names, numbers and texts. Parsing refuses everything else.

    Raises:
        InvalidArgument: the text is no such expression.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._bad("it cannot be read") from None
        self._check(self._tree)
        if not isinstance(self._tree, (ast.Compare, ast.BoolOp, ast.UnaryOp)):
            raise self._bad("it compares nothing. Write for example verified.missing == 0")

    def holds(self, result: Mapping[str, Any]) -> bool:
        """Return whether the condition holds. An ordering of an unknown (null) value is false.

        Raises:
            InvalidArgument: a name that the result does not have.
        """
        return bool(self._value(self._tree, result))

    def values(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return the names in the expression and their values."""
        names = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, (ast.Attribute, ast.Subscript, ast.Name))
        ]
        inner = {id(child) for node in names for child in ast.walk(node) if child is not node}
        return {ast.unparse(node): self._value(node, result) for node in names if id(node) not in inner}

    def _bad(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"--assert {self.text!r}: {why}", field="assert", value=self.text)

    def _check(self, node: ast.AST) -> None:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() | None) | ast.Name():
                return
            case ast.Attribute(value=inner):
                self._check(inner)
            case ast.Subscript(value=inner, slice=ast.Constant(value=int() | str())):
                self._check(inner)
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=inner):
                self._check(inner)
            case ast.BoolOp(values=parts):
                for part in parts:
                    self._check(part)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                self._check(left)
                self._check(right)
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _COMPARISONS for op in ops
            ):
                for part in (left, *others):
                    self._check(part)
            case _:
                raise self._bad("only names, numbers, + - * /, comparisons, and, or, not")

    def _value(self, node: ast.AST, result: Mapping[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return True if name == "true" else False if name == "false" else self._member(result, name)
            case ast.Attribute(value=inner, attr=name):
                return self._member(self._value(inner, result), name)
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
                assert isinstance(key, (str, int))
                return self._member(self._value(inner, result), key)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return not self._value(inner, result)
            case ast.UnaryOp(operand=inner):
                return -self._value(inner, result)
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(self._value(part, result) for part in parts)
            case ast.BoolOp(values=parts):
                return any(self._value(part, result) for part in parts)
            case ast.BinOp(left=left, op=op, right=right):
                return self._computed(
                    _ARITHMETIC[type(op)], self._value(left, result), self._value(right, result)
                )
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self._value(part, result) for part in (left, *others)]
                return all(
                    self._compared(_COMPARISONS[type(op)], a, b)
                    for op, a, b in zip(ops, values[:-1], values[1:], strict=True)
                )
        raise AssertionError("checked when it was parsed")

    def _computed(self, compute: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        if a is None or b is None:
            return None
        try:
            return compute(a, b)
        except (TypeError, ZeroDivisionError) as error:
            raise self._bad(str(error)) from None

    def _compared(self, compare: Callable[[Any, Any], bool], a: Any, b: Any) -> bool:
        if (a is None or b is None) and compare not in (operator.eq, operator.ne):
            return False
        try:
            return compare(a, b)
        except TypeError as error:
            raise self._bad(str(error)) from None

    def _member(self, value: Any, key: str | int) -> Any:
        try:
            if isinstance(value, (Mapping, list)):
                return value[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            pass
        known = ", ".join(value) if isinstance(value, Mapping) else "nothing by name"
        raise self._bad(f"there is no {key!r}; there is {known}")


FIGURES: Final = ("messages_per_s", "megabytes_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms")
COUNTS: Final = ("sent", "received", "missing", "duplicates", "out_of_order")


def sum_verified(results: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the sums of the verified counts of runs, or of workers."""
    return {name: sum(result["verified"][name] for result in results) for name in COUNTS}


def assemble(
    *,
    scenario: str,
    command: str,
    config: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    raw: Mapping[str, Any],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the whole result as one JSON object."""
    middle: dict[str, Any] = {name: _median([run.get(name) for run in runs]) for name in FIGURES}
    if (reason := runs[0].get("p50_ms_reason")) is not None:
        middle["p50_ms_reason"] = reason
    for name in ("beside", "topics", "tier", "stored"):
        if name in runs[0]:
            middle[name] = _median_tree([run[name] for run in runs])
    if "reference" in runs[0]:
        middle["reference_messages_per_s"] = _median([run["reference"]["messages_per_s"] for run in runs])
    if "publish_messages_per_s" in runs[0]:
        middle["publish_messages_per_s"] = _median([run["publish_messages_per_s"] for run in runs])
    return {
        "scenario": scenario,
        "command": command,
        "config": dict(config),
        "durability": runs[0].get("durability"),
        "runs": [dict(run) for run in runs],
        "median": middle,
        "verified": sum_verified(runs),
        "server": {
            "cpu_us_per_message": _median([run["server"]["cpu_us_per_message"] for run in runs]),
            "rss_peak_bytes": max((run["server"]["rss_peak_bytes"] or 0 for run in runs), default=0) or None,
        },
        "raw": dict(raw),
        "ratio": _ratios(middle, raw)
        # The median of the runs' own ratios: each compares neighbours in time.
        | {"messages_per_s_to_exclusive": _median([run.get("share_of_reference") for run in runs])},
        "machine": dict(machine),
    }


def _ratios(middle: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ratios of the figures to the machine's own, null if either is unknown."""
    return {
        "messages_per_fdatasync": _quotient(middle["messages_per_s"], raw.get("fdatasync_per_s")),
        "messages_per_empty_grpc_call": _quotient(
            middle["messages_per_s"], raw.get("empty_grpc_calls_per_s")
        ),
        "megabytes_per_crc32_megabyte": _quotient(middle["megabytes_per_s"], raw.get("crc32_mb_per_s")),
        "p50_per_fdatasync_p50": _quotient(middle["p50_ms"], raw.get("fdatasync_p50_ms")),
        "p50_over_fdatasync_p50_ms": _difference(middle["p50_ms"], raw.get("fdatasync_p50_ms")),
    }


def machine() -> dict[str, Any]:
    """Return the machine's facts. Call it before the load starts."""
    names = ("pydanube", "grpcio", "protobuf", "numpy", "uvloop")
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "python": sys.version.split()[0],
        "versions": {name: installed_version(name) for name in names} | {"kernel": platform.release()},
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 4) if len(known) == len(values) and known else None


def _median_tree(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: _median_tree([tree[name] for tree in trees])
        if isinstance(trees[0][name], Mapping)
        else _median([tree[name] for tree in trees])
        for name in trees[0]
    }


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else round(a / b, 4)


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else round(a - b, 4)
