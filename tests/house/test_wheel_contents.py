"""What the wheel holds, and the shape of its modules."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGES = (
    "pydanube_core",
    "pydanube_storage",
    "pydanube_broker",
    "pydanube",
    "pydanube_admin",
    "pydanube_mcp",
    "pydanube_cli",
    "pydanube_spark",
    "pydanube_tui",
    "pydanube_connect",
)
# Words that say nothing about what a module knows (docs/style.md#layout).
VAGUE = re.compile(r"(^|_)(utils?|helpers|common|manager|misc|stuff)(_|$)")
LINES_MAX = 700  # of a module: one subject may need as many, two have a module each (docs/style.md#layout)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str, wheel: Path) -> None:
    assert (wheel / package / "__init__.py").is_file()
    assert (wheel / package / "py.typed").is_file()


def test_wheel_holds_only_our_packages_and_its_metadata(wheel: Path) -> None:
    names = {path.name for path in wheel.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == set(PACKAGES)


def test_wheel_holds_nothing_that_only_tests_need(wheel: Path) -> None:
    """Fixtures of outside judges, imitations of a broker: `danube mcp --conformance` finds its own in a clone."""
    assert [path.name for path in wheel.rglob("*") if "fixture" in path.name] == []
    assert not (wheel / "pydanube_mcp" / "conformance").exists()
    assert not list((wheel / "pydanube_admin").glob("testing*"))


def test_wheel_holds_protos_and_their_generated_code(wheel: Path) -> None:
    protos = {path.stem for path in (wheel / "pydanube_core" / "proto").glob("*.proto")}
    generated = wheel / "pydanube_core" / "generated"
    assert {"danube", "danube_admin", "danube_schema", "danube_stream", "danube_ops"} <= protos
    assert {f"{name}_pb2.py" for name in protos} <= {path.name for path in generated.glob("*.py")}
    assert {f"{name}_pb2.pyi" for name in protos} <= {path.name for path in generated.glob("*.pyi")}


def test_pytest_finds_the_fixture_of_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    asked = [
        sys.executable,
        "-m",
        "pytest",
        "--fixtures",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "pydanube.pytest_plugin",
    ]
    for command in (asked[:-2], asked):
        shown = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(wheel)},
            capture_output=True,
            text=True,
        )
        assert "danube_cluster" in shown.stdout, shown.stdout + shown.stderr


def test_wheel_holds_licence_and_names_the_command(wheel: Path) -> None:
    (info,) = wheel.glob("*.dist-info")
    assert "Apache License" in (info / "licenses" / "LICENSE").read_text(encoding="utf-8")
    assert "danube = pydanube_cli.main:main" in (info / "entry_points.txt").read_text(encoding="utf-8")
    metadata = (info / "METADATA").read_text(encoding="utf-8")
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata


def test_extras_are_those_promised(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = {"broker", "mcp", "tui", "spark", "s3", "gcs", "azure", "all", "dev"}
    assert promised <= set(project["optional-dependencies"])


def test_no_module_has_a_vague_name(wheel: Path) -> None:
    vague = [
        str(path.relative_to(wheel))
        for path in wheel.rglob("*.py")
        if any(map(VAGUE.search, (path.stem, path.parent.name)))
    ]
    assert vague == []


def test_no_module_is_too_long(wheel: Path) -> None:
    lengths = {
        path.relative_to(wheel).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in wheel.rglob("*.py")
        if "generated" not in path.parts
    }
    too_long = {name: lines for name, lines in lengths.items() if lines > LINES_MAX}
    assert too_long == {}
