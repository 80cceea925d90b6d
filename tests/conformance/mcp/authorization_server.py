"""A real authorization server for tests: npm's `oidc-provider`, fetched once into .tools/."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest

from tests.support.pinned_packages import TOOLS

PINNED: Final = "oidc-provider@9.13.3"
PROGRAM: Final = Path(__file__).with_name("authorization_server.mjs")
BACK: Final = "https://localhost/back"  # nobody listens there: what it is sent is read from the redirect


@contextmanager
def authorization_server(certificates: Path) -> Iterator[str]:
    """It listens with `server.crt` of that folder; yields its address. Skips the test where there is no npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("NOT RUN: oidc-provider needs node and npm")
    folder = TOOLS / "authorization-server"
    if not (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"name": "authorization-server", "private": true}\n')
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", PINNED]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"NOT RUN: npm install failed: {done.stderr.strip()[-300:]}")
        (folder / "ready").touch()
    program = folder / PROGRAM.name  # beside its packages, where Node looks for them
    shutil.copy(PROGRAM, program)
    with subprocess.Popen(
        [node, program, certificates, BACK], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def signed_in(url: str, person: str, web: httpx.AsyncClient) -> dict[str, str]:
    """Do in the server's pages what a person does: sign in, consent; returns what the client is sent back with."""
    answer = await web.get(url)
    for _ in range(20):
        while answer.is_redirect:
            url = urljoin(url, answer.headers["location"])
            if url.startswith(BACK):
                return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
            answer = await web.get(url)
        assert answer.status_code == 200, answer.text
        prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
        action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
        assert prompt is not None, answer.text
        assert action is not None, answer.text
        url = urljoin(url, action[1])
        answer = await web.post(url, data={"prompt": prompt[1], "login": person, "password": "any"})
    raise AssertionError("the pages do not end")
