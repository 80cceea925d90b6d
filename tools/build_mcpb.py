"""Build the bundle that MCP hosts install with a click: `dist/danube-VERSION.mcpb`.

    python tools/build_mcpb.py [--out FILE] [--wheel FILE]

The bundle is of the type `uv`: it holds our wheel, a project file that names it, and a small program; the host's uv makes
the environment when the bundle is installed, for the machine it is installed on. Nothing of it is signed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
EPOCH: Final = (2026, 1, 1, 0, 0, 0)  # of the files in the archive: the same bytes from the same sources

MAIN: Final = '''\
"""Starts the MCP server with what the user has set in the host's form."""

import os

from pydanube_mcp import parse_connections, run_stdio


def setting(name: str) -> str:
    value = os.environ.get(name, "").strip()
    return "" if value.startswith("${") else value  # what the user left empty, some hosts pass on as it is


clusters = [each.strip() for each in setting("DANUBE_BUNDLE_CLUSTERS").split(",") if each.strip()]
if clusters and "=" not in clusters[0]:
    clusters[0] = "default=" + clusters[0]
run_stdio(
    parse_connections(clusters, admin_url="http://127.0.0.1:50051"),
    profile=setting("DANUBE_BUNDLE_PROFILE") or "default",
    read_only=setting("DANUBE_BUNDLE_READ_ONLY").lower() != "false",
    confirm="human" if setting("DANUBE_BUNDLE_ASK").lower() == "true" else "auto",
    principal=setting("DANUBE_BUNDLE_PRINCIPAL") or None,
)
'''


def manifest(version: str) -> dict[str, Any]:
    """The bundle's manifest, form 0.4."""
    from pydanube_admin.registry import TOOLS

    return {
        "manifest_version": "0.4",
        "name": "danube",
        "display_name": "Danube",
        "version": version,
        "description": "Administer a Danube messaging cluster: topics, subscriptions, lag, diagnosis.",
        "long_description": "Asks and administers a running Danube cluster. It reads only, unless that is switched off; "
        "what destroys needs a plan that was shown first, or the answer of a person; what is done is recorded in the "
        "cluster, and most of it can be undone.",
        "author": {"name": "The pydanube authors"},
        "license": "Apache-2.0",
        "keywords": ["danube", "messaging", "administration"],
        "server": {
            "type": "uv",
            "entry_point": "server/main.py",
            "mcp_config": {
                "command": "uv",
                "args": ["run", "--directory", "${__dirname}", "server/main.py"],
                "env": {
                    "DANUBE_BUNDLE_CLUSTERS": "${user_config.clusters}",
                    "DANUBE_BUNDLE_PROFILE": "${user_config.profile}",
                    "DANUBE_BUNDLE_READ_ONLY": "${user_config.read_only}",
                    "DANUBE_BUNDLE_ASK": "${user_config.ask_a_person}",
                    "DANUBE_BUNDLE_PRINCIPAL": "${user_config.principal}",
                },
            },
        },
        "tools": [
            {"name": tool, "description": operation.summary}
            for tool, operation in TOOLS.items()
            if operation.default_profile
        ],
        "tools_generated": True,
        "prompts_generated": True,
        "compatibility": {"platforms": ["darwin", "linux", "win32"], "runtimes": {"python": ">=3.11"}},
        "user_config": {
            "clusters": {
                "type": "string",
                "title": "Cluster",
                "description": "Admin address, or several as name=address,name=address",
                "default": "http://127.0.0.1:50051",
                "required": True,
            },
            "read_only": {
                "type": "boolean",
                "title": "Only read",
                "description": "Offer nothing that changes anything",
                "default": True,
            },
            "ask_a_person": {
                "type": "boolean",
                "title": "A person confirms",
                "description": "What destroys is done only after an answer of yours, never by a plan's token alone",
                "default": True,
            },
            "profile": {
                "type": "string",
                "title": "Tools",
                "description": "default (23 tools that reach everything) or full (every operation is a tool)",
                "default": "default",
            },
            "principal": {
                "type": "string",
                "title": "Your name",
                "description": "Stands in the audit; empty: your user at this machine",
                "default": "",
            },
        },
    }


def project(wheel: str) -> str:
    """Return the bundle's pyproject.toml."""
    return (
        '[project]\nname = "danube-bundle"\nversion = "0"\nrequires-python = ">=3.11"\n'
        'dependencies = ["pydanube[mcp]"]\n\n'
        f'[tool.uv]\npackage = false\n\n[tool.uv.sources]\npydanube = {{ path = "{wheel}" }}\n'
    )


def bundle(wheel: Path, out: Path) -> Path:
    """Write the bundle around a wheel."""
    version = wheel.name.split("-")[1]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):  # hosts compare versions as major.minor.patch
        version = re.match(r"\d+(\.\d+)*", version).group() + ".0" * max(0, 2 - version.count("."))  # type: ignore[union-attr]
    files = {
        "manifest.json": json.dumps(manifest(version), indent=2).encode() + b"\n",
        "pyproject.toml": project(wheel.name).encode(),
        "server/main.py": MAIN.encode(),
        wheel.name: wheel.read_bytes(),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return out


def built_wheel(folder: Path) -> Path:
    """Build the wheel and return its path."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(f"the wheel could not be built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return next(folder.glob("pydanube-*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the MCP bundle.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--wheel", type=Path, help="one that is built already")
    given = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("version", "0")
    with tempfile.TemporaryDirectory() as folder:
        wheel = given.wheel or built_wheel(Path(folder))
        print(bundle(wheel, given.out or ROOT / "dist" / f"danube-{version}.mcpb"))


if __name__ == "__main__":
    main()
