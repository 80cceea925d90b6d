"""How an optional part is installed: from where the package itself came."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pydanube_core.extras import install_command

PIP = "pip" if sys.prefix == sys.base_prefix else f"{sys.executable} -m pip"


def origin(folder: Path, **facts: object) -> str:
    return json.dumps({"url": folder.as_uri(), "dir_info": facts})


def test_it_is_added_from_the_folder_that_the_package_came_from(tmp_path: Path) -> None:
    folder = tmp_path / "a clone"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    assert install_command("mcp", origin=origin(folder)) == f'{PIP} install "{folder}[mcp]"'
    assert install_command("mcp", origin=origin(folder, editable=True)) == f'{PIP} install -e "{folder}[mcp]"'


@pytest.mark.parametrize(
    "found", ["{}", "[", "[]", '{"url": "https://index/pydanube.whl"}', '{"url": "file:///no/such/folder"}']
)
def test_what_came_from_elsewhere_is_added_from_the_index(found: str) -> None:
    assert install_command("s3,spark", origin=found) == f'{PIP} install "pydanube[s3,spark]"'


def test_sources_without_an_installation_name_their_clone() -> None:
    root = Path(__file__).parents[2]
    assert install_command("broker", origin="") == f'{PIP} install -e "{root}[broker]"'


def test_this_installation_can_be_added_to() -> None:
    command = install_command("broker")
    folder = Path(command.split('"')[1].partition("[")[0])
    assert command.startswith(f"{PIP} install ")
    assert (folder / "pyproject.toml").is_file()
