"""`--assert EXPR`: comparisons over the result by dotted names, without `eval`.

verified.missing == 0
median.messages_per_s >= 500000 and median.p99_ms < 10
median.p50_ms <= raw.fdatasync_p50_ms + 0.9
runs[0].messages_per_s > 0
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydanube_core.errors import InvalidArgument

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
    """A parsed condition. Parsing refuses everything that is not a comparison of names, numbers and texts.

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
            raise self._bad("it compares nothing; write for example verified.missing == 0")

    def holds(self, result: Mapping[str, Any]) -> bool:
        """Whether the result is so; an unknown (null) value makes an ordering false.

        Raises:
            InvalidArgument: a name that the result does not have.
        """
        return bool(self._value(self._tree, result))

    def values(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """The names in the expression and what they were."""
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
