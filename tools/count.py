"""Count the house: what a change that makes it smaller is measured by.

    python tools/count.py [ROOT] [--long] [--wide]

Product code is the `*.py` of the wheel's packages without generated code. ROOT is another checkout; `--long` and
`--wide` also name the functions over LONG_LINES lines and over WIDE_PARAMETERS parameters.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONG_LINES = 60
WIDE_PARAMETERS = 8
FULL_MODULES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    name: str
    place: str
    lines: int  # from `def` to its end, with docstring and comments, without decorators
    parameters: int  # without self and cls


def product_modules(root: Path) -> list[Path]:
    """Return the hand-written modules of what the wheel is built from, ascending."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    found = (path for package in packages for path in (root / package).rglob("*.py"))
    return sorted(path for path in found if "generated" not in path.parts)


def functions_of(path: Path, root: Path) -> Iterator[Function]:
    """Return every function and method of a module, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
            assert node.end_lineno is not None
            yield Function(
                name=node.name,
                place=f"{path.relative_to(root)}:{node.lineno}",
                lines=node.end_lineno - node.lineno + 1,
                parameters=len(names) - (names[:1] in (["self"], ["cls"])),
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--long", action="store_true", help="name the long functions")
    parser.add_argument("--wide", action="store_true", help="name the wide signatures")
    options = parser.parse_args()
    root = options.root.resolve()
    modules = product_modules(root)
    lines = Counter[str]()
    for path in modules:
        lines[path.relative_to(root).parts[0]] += len(path.read_text(encoding="utf-8").splitlines())
    functions = [function for path in modules for function in functions_of(path, root)]
    long = sorted((each for each in functions if each.lines > LONG_LINES), key=lambda each: -each.lines)
    wide = [each for each in functions if each.parameters > WIDE_PARAMETERS]
    wide.sort(key=lambda each: -each.parameters)
    names = Counter(path.name for path in modules if path.name != "__init__.py")
    folders = Counter(path.parent.relative_to(root) for path in modules)

    print(f"product lines        {sum(lines.values())}")
    for name, count in sorted(lines.items()):
        print(f"  {name:18} {count}")
    print(f"modules              {len(modules)}")
    print(f"functions            {len(functions)}")
    print(f"over {LONG_LINES} lines        {len(long)}")
    if options.long:
        for each in long:
            print(f"  {each.lines:4} {each.name:24} {each.place}")
    print(f"over {WIDE_PARAMETERS} parameters    {len(wide)}")
    if options.wide:
        for each in wide:
            print(f"  {each.parameters:4} {each.name:24} {each.place}")
    print("same file name       " + ", ".join(f"{name} {count}" for name, count in names.most_common(6)))
    full = [f"{folder} {count}" for folder, count in folders.most_common() if count > FULL_MODULES]
    print(f"over {FULL_MODULES} modules      " + (", ".join(full) or "none"))


if __name__ == "__main__":
    main()
