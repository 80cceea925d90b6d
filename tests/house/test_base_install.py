"""The base install is the SDK and the client commands: it runs where no extra is installed.

The extras' modules are blocked in a process of its own, which looks at the unpacked wheel instead of the tree.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# What only extras bring (pyproject, optional-dependencies).
OF_EXTRAS = (
    "fsspec",
    "grpc",
    "grpc_tools",
    "httpx",
    "mcp",
    "numpy",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "pyspark",
    "s3fs",
    "starlette",
    "textual",
    "uvicorn",
    "uvloop",
)

# The blocked are not found, as on a machine that does not have them: importlib.util.find_spec answers None.
BLOCK = f"""
import sys
from importlib.machinery import PathFinder
class Finder:
    blocked = {set(OF_EXTRAS)!r}
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in self.blocked else PathFinder.find_spec(name, path, target)
sys.meta_path = [Finder() if finder is PathFinder else finder for finder in sys.meta_path]
sys.path.insert(0, sys.argv.pop(1))
"""


def python_without_extras(wheel: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", BLOCK + program, wheel, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def test_the_blocker_blocks(wheel: Path) -> None:
    done = python_without_extras(wheel, "import numpy")
    assert done.returncode == 1
    assert "No module named 'numpy'" in done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "pydanube_core",
        "pydanube",
        "pydanube.sync",
        "pydanube.admin",
        "pydanube_admin",
        "pydanube_admin.remote",
        "pydanube_cli.main",
    ],
)
def test_package_imports_without_any_extra(module: str, wheel: Path) -> None:
    program = f"import {module} as m; print(m.__file__)"
    done = python_without_extras(wheel, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(wheel)), "the wheel was to be looked at, not the tree"


def test_a_table_without_its_extra_says_what_to_install(wheel: Path) -> None:
    program = (
        "import pydanube\n"
        "try:\n    pydanube.read_table('t')\n"
        "except pydanube.MissingExtra as error:\n    print(error.details['extra'], error.message)"
    )
    done = python_without_extras(wheel, program)
    assert done.stdout.startswith("tier tables need pyarrow and numpy: "), done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("up", "--memory"), "broker,mcp"),
        (("broker", "--memory"), "broker"),
        (("bench", "e2e"), "broker"),
        (("mcp",), "mcp"),
        (("tui", "--snapshot", "overview"), "tui"),
    ],
)
def test_command_whose_extra_is_missing_names_it(words: tuple[str, ...], extra: str, wheel: Path) -> None:
    program = "from pydanube_cli.main import main; sys.argv[0] = 'danube'; sys.exit(main())"
    done = python_without_extras(wheel, program, *words, "--json")
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert '"MISSING_EXTRA"' in done.stderr
    assert f"pydanube[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_says_what_is_missing_for_which_part(wheel: Path, tmp_path: Path) -> None:
    program = "from pydanube_cli.main import main; sys.argv[0] = 'danube'; sys.exit(main())"
    words = ("doctor", "--json", "--data-dir", str(tmp_path), "--admin", "http://127.0.0.1:1")
    done = python_without_extras(wheel, program, *words)
    findings = json.loads(done.stdout)["findings"]
    missing = {found["summary"].split()[2] for found in findings if found["check"] == "extras"}
    assert {"broker", "mcp", "spark"} <= missing, done.stderr
    assert [found["level"] for found in findings if found["check"] == "metadata"] == ["skipped"]


def test_the_wheel_has_the_pages_of_docs_search(wheel: Path) -> None:
    program = (
        "from pydanube_admin.wording.pages import SHIPPED, page_text\n"
        "print([page for page in SHIPPED if '# ' not in page_text(page)])"
    )
    done = python_without_extras(wheel, program)
    assert (done.stdout, done.stderr) == ("[]\n", "")
