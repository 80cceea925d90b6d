"""Small faults for a Python source: the mutations that tools/faults.py puts into critical code, one at a time.

A mutation replaces one piece of text within a function. The operators are the faults that were found to survive tests
here and elsewhere: a bound that is off by one, a condition that is turned round, a call or a refusal that is missing, a
number, a flag. Nothing is mutated where a fault changes no promise: assertions, log calls, texts of errors, annotations,
decorators, defaults and constants of modules.

Pure: source text goes in, mutations come out, in the order of the source.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Final

COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
CALLS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGGERS: Final = ("log", "logger", "warnings")
_SIMPLE: Final = (ast.Name, ast.Attribute, ast.Call)  # `not` before them needs no brackets
NAME_CHARS: Final = 60  # of the old and of the new text each, in a mutation's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One fault: `old` at [start, end), bytes of the source, becomes `new`."""

    path: str
    function: str  # qualified, within the module
    line: int  # of the mutated text
    lines: tuple[
        int, int
    ]  # of the statement around it, both inclusive: a test that runs one of them runs the fault
    start: int
    end: int
    new: str
    shown: str  # the source line, with the mutation in its place
    ordinal: int = 1  # among equal ones of the function

    @property
    def name(self) -> str:
        """Return a name that stays when lines move: file, function, and the line with the fault in its place."""
        again = f" #{self.ordinal}" if self.ordinal > 1 else ""
        return f"{self.path} {self.function}: {self.shown}{again}"

    def applied_to(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= NAME_CHARS else f"{line[:NAME_CHARS]}…"


def mutations_of(path: str, source: bytes) -> list[Mutation]:
    """Return all mutations of a module."""
    finder = _Finder(path, source)
    finder.module(ast.parse(source))
    counts: dict[tuple[str, str], int] = {}
    numbered = []
    for found in sorted(finder.found, key=lambda each: (each.start, each.end, each.new)):
        key = (found.function, found.shown)
        counts[key] = counts.get(key, 0) + 1
        numbered.append(replace(found, ordinal=counts[key]))
    return numbered


class _Finder:
    """Walks the functions of one module and collects their mutations."""

    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutation] = []
        self._path = path
        self._source = source
        self._line_starts = [0]
        for line in source.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._names: list[str] = []
        self._lines = (0, 0)

    def module(self, tree: ast.Module) -> None:
        self._scope(tree.body)

    def _scope(self, body: list[ast.stmt]) -> None:
        """Go through a module or a class: only its functions count."""
        for node in body:
            match node:
                case ast.ClassDef() if not any("Protocol" in ast.unparse(base) for base in node.bases):
                    self._names.append(node.name)
                    self._scope(node.body)
                    self._names.pop()
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._function(node)
                case ast.If() if "TYPE_CHECKING" not in ast.unparse(node.test):
                    self._scope(node.body + node.orelse)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        self._names.append(node.name)
        self._block(node.body)
        self._names.pop()

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        """Mutate one statement, and the statements and expressions in it."""
        around = self._lines
        inner = _bodies(node)
        last = min((body[0].lineno for body in inner if body), default=0) - 1
        self._lines = (node.lineno, max(node.lineno, last) if inner else node.end_lineno or node.lineno)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node)
            case (
                ast.ClassDef()
                | ast.Assert()
                | ast.Import()
                | ast.ImportFrom()
                | ast.Global()
                | ast.Nonlocal()
            ):
                pass
            case ast.Raise():
                self._replace(node, "pass")
            case ast.Expr(value=ast.Constant()):
                pass  # a docstring, or `...`
            case ast.Expr(value=call):
                if not _is_log(call):
                    if not isinstance(call, ast.Yield | ast.YieldFrom):
                        self._replace(node, "pass")
                    self._expression(call)
            case ast.AugAssign():
                self._replace(node, "pass")
                self._expression(node.value)
            case ast.Assign():
                stored = any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
                if stored and self._names[-1] != "__init__":  # there its absence ends every test
                    self._replace(node, "pass")
                self._expression(node.value)
            case ast.AnnAssign():
                if node.value is not None:
                    self._expression(node.value)
            case ast.Delete():
                self._replace(node, "pass")
            case ast.Continue():
                self._replace(node, "break")
            case ast.Break():
                self._replace(node, "continue")
            case ast.If() | ast.While():
                self._condition(node.test)
                self._expression(node.test)
            case ast.For() | ast.AsyncFor():
                self._expression(node.iter)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._expression(item.context_expr)
            case ast.Match():
                self._expression(node.subject)
                for branch in node.cases:
                    if branch.guard is not None:
                        self._lines = (branch.guard.lineno, branch.guard.end_lineno or branch.guard.lineno)
                        self._condition(branch.guard)
                        self._expression(branch.guard)
            case ast.Return() if node.value is not None:
                self._expression(node.value)
            case _:
                pass
        for body in inner:
            self._block(body)
        self._lines = around

    def _condition(self, test: ast.expr) -> None:
        """Turn round a condition that no other operator turns round."""
        if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.NamedExpr | ast.Constant):
            text = self._text(test)
            self._replace(test, f"not {text}" if isinstance(test, _SIMPLE) else f"not ({text})")

    def _expression(self, node: ast.expr | ast.comprehension | ast.keyword) -> None:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for before, operator, after in zip(operands, node.ops, operands[1:], strict=False):
                    self._between(before, after, *COMPARISONS[type(operator)])
            case ast.BoolOp():
                words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for before, after in zip(node.values, node.values[1:], strict=False):
                    self._between(before, after, *words)
                    if not isinstance(before, ast.NamedExpr):
                        self._condition(before)
                if not isinstance(node.values[-1], ast.NamedExpr):
                    self._condition(node.values[-1])
            case ast.UnaryOp(op=ast.Not()):
                text = self._text(node.operand)
                self._replace(node, text if isinstance(node.operand, _SIMPLE) else f"({text})")
            case ast.BinOp():
                if type(node.op) in ARITHMETIC and not (_is_text(node.left) or _is_text(node.right)):
                    self._between(node.left, node.right, *ARITHMETIC[type(node.op)])
            case ast.Constant(value=bool(flag)):
                self._replace(node, str(not flag))
            case ast.Constant(value=int(number)):
                self._replace(node, str(number + 1))
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                self._replace(node.func, CALLS[name])
            case ast.IfExp():
                self._condition(node.test)
            case ast.comprehension():
                for test in node.ifs:
                    self._condition(test)
            case ast.JoinedStr() | ast.Lambda(body=ast.Constant()):
                return
            case _:
                pass
        if isinstance(node, ast.Call) and _is_log(node):
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr | ast.comprehension | ast.keyword):
                self._expression(child)

    # -- text ------------------------------------------------------------------------------------------------

    def _at(self, line: int, column: int) -> int:
        return self._line_starts[line - 1] + column

    def _line_of(self, position: int) -> int:
        return bisect_right(self._line_starts, position)

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.stmt | ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _replace(self, node: ast.stmt | ast.expr, new: str) -> None:
        start, end = self._span(node)
        self._note(node.lineno, start, end, new)

    def _between(self, before: ast.expr, after: ast.expr, old: str, new: str) -> None:
        """Replace the operator between two operands."""
        start, end = self._span(before)[1], self._span(after)[0]
        word = (
            r"(?<!\w)" + r"\s+".join(map(re.escape, old.split())) + r"(?!\w)"
            if old[0].isalpha()
            else re.escape(old)
        )
        match = re.search(word, self._source[start:end].decode())
        if match is not None:
            self._note(self._line_of(start + match.start()), start + match.start(), start + match.end(), new)

    def _note(self, line: int, start: int, end: int, new: str) -> None:
        before = self._source[self._line_starts[line - 1] : start]
        after = self._source[end:].split(b"\n", 1)[0]
        old = _short(self._source[start:end].decode())
        self.found.append(
            Mutation(
                path=self._path,
                function=".".join(self._names),
                line=line,
                lines=self._lines,
                start=start,
                end=end,
                new=new,
                shown=f"{before.decode().rpartition(chr(10))[2]}⟦{old} → {_short(new)}⟧{after.decode()}".strip(),
            )
        )


def _bodies(node: ast.stmt) -> list[list[ast.stmt]]:
    match node:
        case ast.If() | ast.While() | ast.For() | ast.AsyncFor():
            return [node.body, node.orelse]
        case ast.With() | ast.AsyncWith():
            return [node.body]
        case ast.Try() | ast.TryStar():
            return [node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody]
        case ast.Match():
            return [branch.body for branch in node.cases]
        case _:
            return []


def _is_log(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in LOGGERS
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=name))):
            return name.strip("_") in LOGGERS
        case _:
            return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
