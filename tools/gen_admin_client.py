"""Write the typed admin client (client/pydanube/admin) from the declarations of the operations.

    python tools/gen_admin_client.py            write it
    python tools/gen_admin_client.py --check    write nothing; exit with 1 when it has drifted

The declarations are in pydanube_admin, which imports the client and not the other way round: so the client's classes
are generated, and hold nothing but names and types.
"""

from __future__ import annotations

import keyword
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydanube_admin.engine.models import Effect, Page, Result
from pydanube_admin.engine.operation import Operation
from pydanube_admin.registry import OPERATIONS

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.generated_files import write_or_compare  # noqa: E402  # a neighbour, found by its folder

FOLDER: Final = ROOT / "client" / "pydanube" / "admin" / "generated"
HEAD: Final = "# Written by tools/gen_admin_client.py; do not edit.\n"
RENAMED: Final = {"Plan": "PlanDocument"}  # `pydanube.admin.Plan` is the object that can be applied


def main(argv: list[str]) -> int:
    pages = {
        "results.py": results(),
        "operations.py": operations(),
        "sync_operations.py": sync_operations(),
    }
    files = {FOLDER / name: formatted(source) for name, source in pages.items()}
    return write_or_compare(files, check="--check" in argv, remedy="python tools/gen_admin_client.py")


def formatted(source: str) -> str:
    ruff = str(Path(sys.executable).with_name("ruff"))
    for arguments in (["check", "--select", "I,F401", "--fix-only", "-q"], ["format", "-q"]):
        done = subprocess.run(
            [ruff, *arguments, "--stdin-filename", str(FOLDER / "x.py"), "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        )
        source = done.stdout
    return source


# -- results -------------------------------------------------------------------------------------------------------


def is_page(model: type[BaseModel]) -> bool:
    """`Page[Item]` itself; one with more fields is a class of its own."""
    return model.__pydantic_generic_metadata__["origin"] is Page


def models() -> dict[str, type[BaseModel]]:
    """Every class of a result, what it is made of first."""
    found: dict[str, type[BaseModel]] = {}

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for field in annotation.model_fields.values():
                visit(field.annotation)
            if not is_page(annotation):
                assert found.setdefault(annotation.__name__, annotation) is annotation, annotation.__name__
            return
        for argument in get_args(annotation):
            visit(argument)

    for operation in OPERATIONS.values():
        visit(operation.result)
    return found


def results() -> str:
    lines = [HEAD, '"""The results of operations."""', "", "from __future__ import annotations", ""]
    lines += ["from typing import Any, Literal", "", "from pydantic import Field", ""]
    lines += ["from pydanube.admin.values import Page, Result", ""]
    classes = models()
    for name, model in classes.items():
        lines += ["", f"class {RENAMED.get(name, name)}(Result):"]
        summary = (model.__doc__ or "").strip().split("\n")[0]
        if summary and model.__doc__ != Result.__doc__:
            lines += [f'    """{summary}"""', ""]
        lines += [f"    {line}" for line in fields(model)] or ["    pass"]
    return "\n".join(lines) + "\n"


def fields(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        text = f"{name}: {spelled(field.annotation)}"
        facts = []
        assert field.exclude_if is None or not field.is_required(), (
            f"{name} may be left out: give it a default"
        )
        if field.alias:
            facts.append(f"alias={field.alias!r}")
        if not field.is_required():
            if field.default_factory is not None:
                facts.insert(0, f"default_factory={field.default_factory.__name__}")
            else:
                facts.insert(0, f"default={field.default!r}")
        if facts == [f"default={field.default!r}"]:
            text += f" = {field.default!r}"
        elif facts:
            text += f" = Field({', '.join(facts)})"
        yield text


def spelled(annotation: Any) -> str:
    """Return a type as source."""
    if annotation is type(None):
        return "None"
    if annotation is Any:
        return "Any"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return spelled(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(spelled(argument) for argument in arguments)
    if origin is Literal:
        return f"Literal[{', '.join(repr(argument) for argument in arguments)}]"
    if origin in (list, dict, tuple):
        return f"{origin.__name__}[{', '.join(spelled(argument) for argument in arguments)}]"
    assert isinstance(annotation, type), annotation
    if issubclass(annotation, BaseModel):
        if is_page(annotation):
            return f"Page[{spelled(annotation.__pydantic_generic_metadata__['args'][0])}]"
        return RENAMED.get(annotation.__name__, annotation.__name__)
    return annotation.__name__


# -- operations ----------------------------------------------------------------------------------------------------


def grouped() -> dict[str, list[Operation]]:
    groups: dict[str, list[Operation]] = {}
    for operation in OPERATIONS.values():
        groups.setdefault(operation.name.partition(".")[0], []).append(operation)
    return groups


def operations() -> str:
    lines = [
        HEAD,
        '"""The operations of a cluster, from asyncio."""',
        "",
        "from __future__ import annotations",
        "",
    ]
    lines += ["from collections.abc import Mapping", "from typing import Any, Literal", ""]
    lines += [
        "from pydanube.admin.calling import OperationCaller",
        "from pydanube.admin.plans import Plan, planned",
    ]
    lines += [
        f"from pydanube.admin.generated.results import {', '.join(sorted(RENAMED.get(n, n) for n in models()))}"
    ]
    lines += ["from pydanube.admin.values import Page", "from pydanube.keywords import KeywordsNamed", ""]
    for group, members in grouped().items():
        lines += ["", f"class {class_name(group)}(KeywordsNamed):", f'    """`admin.{group}`"""', ""]
        lines += [
            "    def __init__(self, caller: OperationCaller) -> None:",
            "        self._caller = caller",
            "",
        ]
        for operation in members:
            lines += [f"    {line}" if line else "" for line in method(operation)]
            if operation.planned:
                lines += [f"    {line}" if line else "" for line in planner(operation)]
    lines += ["", "class Admin:", '    """All groups."""', ""]
    lines += ["    def __init__(self, caller: OperationCaller) -> None:"]
    lines += [f"        self.{group} = {class_name(group)}(caller)" for group in grouped()]
    return "\n".join(lines) + "\n"


def sync_operations() -> str:
    """The same methods, waited for: a line each."""
    groups = grouped()
    lines = [
        HEAD,
        '"""The operations of a cluster, without await."""',
        "",
        "from __future__ import annotations",
        "",
    ]
    lines += [
        "from pydanube.admin.plans import SyncPlan",
        "from pydanube.blocking.wrapping import Blocking, InLoop, Wrapped",
    ]
    names = ", ".join(sorted(["Admin", *map(class_name, groups)]))
    lines += [f"from pydanube.admin.generated.operations import {names}"]
    lines += ["from pydanube.blocking.loop import Loop", ""]
    for group, members in groups.items():
        asyncio = class_name(group)
        lines += ["", f"class Sync{asyncio}(InLoop[{asyncio}]):", f'    """`admin.{group}`"""', ""]
        for operation in members:
            verb = operation.name.partition(".")[2]
            lines += [f"    {python_name(verb)} = Blocking({asyncio}.{python_name(verb)})"]
            if operation.planned:
                lines += [f"    plan_{verb} = Wrapped(Blocking({asyncio}.plan_{verb}), SyncPlan)"]
        lines += [""]
    lines += ["", "class SyncAdmin:", '    """All groups."""', ""]
    lines += ["    def __init__(self, loop: Loop, admin: Admin) -> None:"]
    lines += [f"        self.{group} = Sync{class_name(group)}(loop, admin.{group})" for group in groups]
    return "\n".join(lines) + "\n"


def class_name(group: str) -> str:
    return "".join(word.capitalize() for word in group.split("_")) + "Operations"


def python_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


def request_fields(operation: Operation) -> list[tuple[str, str, FieldInfo, bool]]:
    """(name of the wire, of Python, field, required), the positional ones first."""
    found = {field.alias or name: field for name, field in operation.request.model_fields.items()}
    ordered = [(argument.name, argument) for argument in operation.arguments]
    ordered.sort(key=lambda pair: (not pair[1].positional, not pair[1].required))
    return [(name, python_name(name), found[name], argument.required) for name, argument in ordered]


def signature(operation: Operation, name: str, result: str, *, token: bool) -> str:
    positional = {argument.name for argument in operation.arguments if argument.positional}
    parts = ["self"]
    rest = []
    for wire, python, field, required in request_fields(operation):
        kind = spelled(field.annotation).replace("dict[", "Mapping[")
        if wire in positional:
            parts.append(f"{python}: {kind}")
        elif required:
            rest.append(f"{python}: {kind}")
        else:
            rest.append(f"{python}: {kind.removesuffix(' | None')} | None = None")
    if token:
        rest.append("plan_token: str | None = None")
    if operation.takes_why:
        rest.append("why: str | None = None")
    if rest:
        parts += ["*", *rest]
    return f"async def {name}({', '.join(parts)}) -> {result}:"


def method(operation: Operation) -> Iterator[str]:
    result = spelled(operation.result)
    name = python_name(operation.name.partition(".")[2])
    yield signature(operation, name, result, token=operation.planned)
    yield f'    """{operation.summary}"""'
    reads = ", reads=True" if operation.effect is Effect.READ else ""
    yield f"    return await self._caller.call({told(operation, result)}{reads})"
    yield ""


def planner(operation: Operation) -> Iterator[str]:
    result = spelled(operation.result)
    verb = operation.name.partition(".")[2]
    yield signature(operation, f"plan_{verb}", f"Plan[{result}]", token=False)
    yield f'    """Plan `{verb}`. Nothing changes until the plan is applied."""'
    yield f"    return await planned(self._caller, {told(operation, result)})"
    yield ""


def told(operation: Operation, result: str) -> str:
    """Return the arguments of a call; they have the names of the method's, so `locals()` has them."""
    long_running = ", long_running=True" if operation.long_running else ""
    return f"{operation.name!r}, locals(), {result}{long_running}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
