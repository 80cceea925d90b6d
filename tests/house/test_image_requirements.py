"""The container image installs the wheel without asking for its dependencies: its own list must hold them all."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("broker", "mcp", "s3", "tui")  # as deploy/image/build.sh has them
AGAIN = "remove deploy/image/requirements.txt and run deploy/image/build.sh"


def wanted(project: dict[str, object], extras: tuple[str, ...]) -> set[Requirement]:
    """The direct requirements of the package with these extras, those of extras that an extra names among them."""
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    base = project["dependencies"]
    assert isinstance(base, list)
    found: set[Requirement] = set()
    for line in [*base, *(each for extra in extras for each in optional[extra])]:
        requirement = Requirement(line)
        if requirement.name == "pydanube":
            found |= wanted({**project, "dependencies": []}, tuple(requirement.extras))
        elif requirement.marker is None or requirement.marker.evaluate({"python_version": "3.11"}):
            found.add(requirement)
    return found


def test_everything_that_is_installed_has_its_hashes(root: Path) -> None:
    text = (root / "deploy" / "image" / "requirements.txt").read_text(encoding="utf-8")
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert len(entries) > 20
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    containerfile = (root / "deploy" / "image" / "Containerfile").read_text(encoding="utf-8")
    assert "--require-hashes -r /build/requirements.txt" in containerfile


def test_the_list_holds_what_the_package_asks_for(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (root / "deploy" / "image" / "requirements.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    wrong = [
        str(requirement)
        for requirement in wanted(project, EXTRAS)
        if not requirement.specifier.contains(pinned.get(canonicalize_name(requirement.name), "0"))
    ]
    assert wrong == [], AGAIN
