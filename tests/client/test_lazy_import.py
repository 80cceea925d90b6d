"""`import pydanube` costs next to nothing, and nobody who uses its names can tell."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pydanube
import pytest

SOURCE = Path(pydanube.__file__)
LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)")


def _import_times(program: str) -> dict[str, int]:
    """Microseconds of each module of ours or others at the top, by the interpreter's own account."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], capture_output=True, text=True, check=True
    )
    return {found[4]: int(found[2]) for found in LINE.finditer(done.stderr)}


def test_the_package_loads_nothing_until_it_is_used() -> None:
    program = (
        "import sys; before = set(sys.modules); import pydanube; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pydanube"]


def test_its_import_is_a_small_part_of_what_it_would_load() -> None:
    # A ratio, for the machine may be busy: 60 ms of the 400 that the whole client takes are one in seven.
    times = _import_times("import pydanube; import pydanube.client")
    assert times["pydanube"] * 7 < times["pydanube.client"]


def test_connect_loads_nothing_that_only_some_programs_need() -> None:
    program = (
        "import sys; from pydanube import connect; print(*sorted({'anyio', 'grpc', 'numpy', 'pyarrow', 'pydantic', 'secrets', "
        "'google.protobuf.descriptor_pool', 'pydanube_core.schema_formats.avro.model', 'pydanube_core.links', 'pydanube_core.services', "
        "'lz4', 'backports.zstd', 'pydanube.consumer', 'pydanube.handler_loop', 'pydanube.options', 'pydanube.producer', "
        "'pydanube.schemas', 'pydanube_core.batch', 'pydanube_core.facts'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_producer_loads_nothing_that_receives() -> None:
    program = "import sys, pydanube.producer; print(*(name for name in sys.modules if name.startswith('pydanube.receiving')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_every_name_is_there_and_the_types_see_the_same_ones() -> None:
    tree = ast.parse(SOURCE.read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(typed) == set(pydanube.__all__)
    for name in pydanube.__all__:
        assert getattr(pydanube, name) is getattr(import_module(typed[name] or ""), name), name
        assert getattr(pydanube, name).__module__.startswith(("pydanube", "typing"))
    assert set(pydanube.__all__) <= set(dir(pydanube))
    assert {"admin", "sync", "testing"} <= set(dir(pydanube))


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Konsumer'"):
        _ = pydanube.Konsumer
    with pytest.raises(ImportError):
        from pydanube import Konsumer  # noqa: F401


def test_a_star_import_and_the_modules_work() -> None:
    program = (
        "import pydanube; from pydanube import *; assert Client is pydanube.Client and connect and TopicNotFound; "
        "assert pydanube.sync.connect and pydanube.testing.InMemoryCluster and pydanube.admin.connect_admin"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
