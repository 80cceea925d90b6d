"""Make what a release consists of: wheel, sdist, MCP bundle, npm package, notes and checksums, in `dist/`.

    python tools/release.py --tag v0.2.0 [--out dist]

The tag must be the version in pyproject.toml, and CHANGELOG.md must have a section for it; both are checked before
anything is built. The same commit gives the same bytes: times in the archives are the commit's.

The way to a release: move what stands under `## [Unreleased]` in CHANGELOG.md under `## [X.Y.Z] - DATE`, set the version
in pyproject.toml and in clients/javascript/package.json, commit, `git tag vX.Y.Z`, `make release TAG=vX.Y.Z`, then upload `dist/`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent


class NotReadyError(Exception):
    """Why this tree cannot be released under the tag, in one sentence."""


def notes(changelog: str, version: str) -> str:
    """The changelog's section of a version.

    Raises:
        NotReadyError: there is none, or it is empty.
    """
    found = re.search(
        rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if found is None:
        raise NotReadyError(f"CHANGELOG.md has no section '## [{version}]': move what is unreleased there")
    if not found[1].strip():
        raise NotReadyError(f"the section '## [{version}]' of CHANGELOG.md is empty")
    return found[1].strip() + "\n"


def checked_version(tag: str, project: str) -> str:
    """The version that `tag` stands for.

    Raises:
        NotReadyError: it is not the project's.
    """
    version = str(tomllib.loads(project)["project"]["version"])
    if tag != f"v{version}":
        raise NotReadyError(f"the tag {tag!r} is not v{version}, which pyproject.toml says")
    return version


def checksums(folder: Path) -> str:
    """Lines as `sha256sum --check` reads them, by name."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def build(out: Path, version: str) -> None:
    """Wheel, sdist and bundle of the tree as it is committed."""
    dirty = _git("status", "--porcelain")
    if dirty:
        raise NotReadyError(f"the tree has changes that are not committed: {dirty.splitlines()[0].strip()}")
    if out.exists() and any(out.iterdir()):
        raise NotReadyError(f"{out} is not empty: choose another --out, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct").strip()}
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    (wheel,) = out.glob(f"pydanube-{version}-*.whl")
    bundle = [sys.executable, "tools/build_mcpb.py", "--wheel", str(wheel.resolve())]
    bundle += ["--out", str((out / f"danube-{version}.mcpb").resolve())]
    subprocess.run(bundle, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def build_javascript(out: Path, version: str) -> bool:
    """The npm package of clients/javascript. False where there is no npm.

    Raises:
        NotReadyError: its version is another one.
    """
    client = ROOT / "clients" / "javascript"
    own = json.loads((client / "package.json").read_text(encoding="utf-8"))["version"]
    if own != version:
        raise NotReadyError(f"clients/javascript/package.json says {own!r}, the release is {version}")
    npm = shutil.which("npm")
    if npm is None:
        return False
    shutil.rmtree(client / "dist", ignore_errors=True)
    for words in (
        ("ci", "--ignore-scripts", "--no-audit", "--no-fund"), ("run", "build"), ("pack", "--pack-destination", str(out.resolve())),
    ):  # fmt: skip
        subprocess.run([npm, *words], check=True, cwd=client, stdout=subprocess.DEVNULL)
    return True


def registry_entry(version: str, source: str, bundle: Path) -> dict[str, Any]:
    """`server.json` for the MCP registry: the bundle, as it lies among the release's files in the repository `source`.

    Raises:
        NotReadyError: `source` is no repository on github.com, which the registry could tie a name to.
    """
    found = re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?", source)
    if found is None:
        raise NotReadyError(
            f"the address {source!r} of Source in pyproject.toml is no repository on github.com"
        )
    owner, repository = found.groups()
    return {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": f"io.github.{owner}/{repository}",
        "title": "Danube",
        "description": "Administer a Danube messaging cluster: topics, lag, diagnosis, plans, undo.",
        "version": version,
        "repository": {"url": f"https://github.com/{owner}/{repository}", "source": "github"},
        "packages": [
            {
                "registryType": "mcpb",
                "identifier": f"https://github.com/{owner}/{repository}/releases/download/v{version}/{bundle.name}",
                "version": version,
                "fileSha256": hashlib.sha256(bundle.read_bytes()).hexdigest(),
                "transport": {"type": "stdio"},
            }
        ],
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Make what a release consists of.")
    parser.add_argument("--tag", required=True, help="vX.Y.Z")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    if shutil.which("git") is None:
        print("error: git is not on the PATH", file=sys.stderr)
        return 1
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    source = tomllib.loads(project)["project"]["urls"].get("Source")
    try:
        version = checked_version(asked.tag, project)
        text = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        build(asked.out, version)
        packed = build_javascript(asked.out, version)
        if source is not None:
            entry = registry_entry(version, source, asked.out / f"danube-{version}.mcpb")
            (asked.out / "server.json").write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")
    except NotReadyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    (asked.out / "NOTES.md").write_text(text, encoding="utf-8")
    (asked.out / "SHA256SUMS").write_text(checksums(asked.out), encoding="utf-8")
    for path in sorted(asked.out.iterdir()):
        print(f"{path.stat().st_size:>10}  {path.name}")
    if not packed:
        print("no package for npm: npm is not installed")
    if source is None:
        print("no server.json for the MCP registry: pyproject.toml has no Source under [project.urls]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
