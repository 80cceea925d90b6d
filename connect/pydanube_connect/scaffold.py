"""`danube connect new`: create a package with a connector, its settings, a test and a file that runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal

from pydanube_core.errors import AlreadyExists, InvalidArgument

_PYPROJECT: Final = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{word}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["pydanube"]

[project.entry-points."pydanube.connectors"]
{word}-{kind} = "{name}:{cls}"

[tool.hatch.build.targets.wheel]
packages = ["{name}"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""
_SINK: Final = '''\
"""{cls}: writes records as lines of JSON; replace `write` by the writes of your target."""

from pathlib import Path

from pydantic import Field
from pydanube_connect import Batch, Refused, RetryLater, Settings, Sink
from pydanube_connect.values import json_payload


class {cls}Settings(Settings):
    path: Path = Field(description="file to append to")


class {cls}(Sink[{cls}Settings]):
    async def write(self, batch: Batch) -> None:
        wrong = [record for record in batch if not isinstance(record.value, dict)]
        if wrong:
            raise Refused(wrong, "the value is no object")
        try:
            with self.settings.path.open("ab") as file:
                file.writelines(json_payload(record.value) + b"\\n" for record in batch)
        except OSError as error:
            raise RetryLater(reason=str(error)) from error
'''
_SOURCE: Final = '''\
"""{cls}: reads the lines of a file; replace `read` by the reads of your source."""

from collections.abc import Mapping
from pathlib import Path

import anyio
from pydantic import Field
from pydanube_connect import Batch, Record, Settings, Source


class {cls}Settings(Settings):
    path: Path = Field(description="file to read. Lines are appended to it")


class {cls}(Source[{cls}Settings]):
    deterministic = True  # the same lines at the same positions, each time it is read

    async def start(self, positions: Mapping[str, str]) -> None:
        self.file = self.settings.path.open("rb")
        self.file.seek(int(positions.get("", "0")))

    async def read(self) -> Batch | None:
        lines = self.file.readlines(65_536)
        if not lines:
            await anyio.sleep(1)
            return None
        return Batch([Record(line.rstrip(b"\\n")) for line in lines], position=str(self.file.tell()))
'''
_SINK_TEST: Final = """\
import asyncio
from pathlib import Path

from pydanube_connect.testing import deliver


def test_objects_are_written_and_others_refused(tmp_path: Path) -> None:
    file = {{
        "name": "test", "connector": "{name}:{cls}", "topic": "t",
        "settings": {{"path": str(tmp_path / "out")}}, "delivery": {{"on_error": "dead_letter"}},
    }}
    outcome = asyncio.run(deliver(file, [{{"id": 1}}, "text", {{"id": 2}}]))
    assert (tmp_path / "out").read_text() == '{{"id":1}}\\n{{"id":2}}\\n'
    assert [each.reason for each in outcome.refused] == ["the value is no object"]
"""
_SOURCE_TEST: Final = """\
import asyncio
from pathlib import Path

from pydanube_connect.testing import collect


def test_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a\\nb\\n")
    file = {{"name": "test", "connector": "{name}:{cls}", "topic": "t", "settings": {{"path": str(tmp_path / "in")}}}}
    assert [record.value for record in asyncio.run(collect(file, 2))] == [b"a", b"b"]
"""
_FILE: Final = """\
# danube connect run {word}.toml --check, then without --check
name = "{word}"
connector = "{name}:{cls}"   # after pip install -e . also "{word}-{kind}"
topic = "{word}"

[settings]
path = "records.jsonl"

[delivery]
on_error = "stop"            # or "dead_letter"
"""


def scaffold(kind: Literal["source", "sink"], name: str, folder: Path) -> list[Path]:
    """Write the package `name` into `folder`. Return its files.

    Raises:
        InvalidArgument: the name is not valid for a Python package.
        AlreadyExists: `folder` already contains this name.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        raise InvalidArgument(
            f"{name!r} is no name of a package: lower-case letters, digits and _, a letter first",
            field="name",
            value=name,
        )
    target = folder / name
    if target.exists():
        raise AlreadyExists(f"{target} exists. Choose another name, or remove it.", field="name", value=name)
    facts = {"name": name, "kind": kind, "word": name.replace("_", "-"), "cls": name.title().replace("_", "")}
    texts = {
        "pyproject.toml": _PYPROJECT,
        f"{name}/__init__.py": _SINK if kind == "sink" else _SOURCE,
        f"tests/test_{name}.py": _SINK_TEST if kind == "sink" else _SOURCE_TEST,
        f"{facts['word']}.toml": _FILE,
    }
    made: list[Path] = []
    for path, text in texts.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(**facts), encoding="utf-8")
        made.append(file)
    return made
