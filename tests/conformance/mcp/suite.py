"""The public MCP conformance suite and the Inspector, from npm with a Node that runs them; kept under .tools/."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

__all__ = ["NotAvailable", "installed", "run"]

PINNED: Final = (
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/inspector@2.12.0",
    "@anthropic-ai/mcpb@2.1.2",  # judges the bundle's manifest
)
NODE: Final = "22.23.3"  # both want 22 or newer, and what the machine has may be older
FOLDER: Final = Path(__file__).resolve().parents[3] / ".tools" / "mcp-suite"
INSTALL_S: Final = 600


class NotAvailable(Exception):
    """The suite cannot run here; the text says why."""


def installed() -> Path:
    """The folder with the programs; they are fetched the first time.

    Raises:
        NotAvailable: no npm, no network, or a machine that Node has no build for.
    """
    ready = FOLDER / "ready"
    if ready.exists() and ready.read_text() == _wanted():
        return FOLDER
    npm = shutil.which("npm")
    if npm is None:
        raise NotAvailable("npm is not installed")
    shutil.rmtree(FOLDER, ignore_errors=True)  # npm takes what an interrupted run left for whole
    FOLDER.mkdir(parents=True)
    (FOLDER / "package.json").write_text('{"name": "mcp-suite", "private": true}\n')
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", _node(), *PINNED]
    try:
        done = subprocess.run(
            command, cwd=FOLDER, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"npm did not end within {INSTALL_S} s") from error
    if done.returncode:
        raise NotAvailable(f"npm install failed: {done.stderr.strip()[-300:]}")
    ready.write_text(_wanted())
    return FOLDER


def _node() -> str:
    system = platform.system().lower()
    machine = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), "")
    if system not in ("linux", "darwin") or not machine:
        raise NotAvailable(f"no Node from npm for {platform.system()} {platform.machine()}")
    return f"node-{system}-{machine}@{NODE}"


def _wanted() -> str:
    return " ".join((_node(), *PINNED))


def run(program: str, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run `conformance`, `mcp-inspector` or `mcpb` with the Node that came with them."""
    folder = installed()
    node = folder / "node_modules" / _node().partition("@")[0] / "bin" / "node"
    script = (folder / "node_modules" / ".bin" / program).resolve()
    return subprocess.run(
        [node, script, *arguments], cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False
    )
