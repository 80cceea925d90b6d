"""The samples of docs/python.md, from top to bottom against a broker: each runs and prints what the page says."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]  # one test runs the whole page

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _samples(text: str) -> list[tuple[int, str, str]]:
    """(line, program, what it prints) of each sample."""
    found: list[tuple[int, str, str]] = []
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            found.append((text.count("\n", 0, block.start(2)), block[2], ""))
        else:
            line, program, _ = found.pop()
            found.append((line, program, block[2]))
    return found


async def test_every_sample_runs_and_prints_what_the_page_says(
    start_broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_BROKER_URL", start_broker(tmp_path, 0).url)
    samples = _samples(PAGE.read_text())
    assert len(samples) >= 15
    names: dict[str, Any] = {"__name__": "guide"}
    for line, program, expected in samples:
        if program.startswith("# test_"):
            name, _, _ = program.removeprefix("# ").partition("\n")
            (tmp_path / name).write_text(program)
            words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name]
            ran = await anyio.run_process(words, cwd=tmp_path, check=False)
            assert expected.strip() in ran.stdout.decode(), f"{ran.stdout.decode()}{ran.stderr.decode()}"
            continue
        printed = io.StringIO()
        # the newlines make a traceback name the line of the page
        code = compile(
            "\n" * line + program, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
        )
        with contextlib.redirect_stdout(printed):
            outcome = eval(code, names)
            if inspect.isawaitable(outcome):
                await outcome
        assert printed.getvalue() == expected, f"the sample at line {line} of docs/python.md"


def test_the_worker_with_retries_and_dead_letters_takes_few_lines() -> None:
    text = PAGE.read_text()
    (program,) = re.findall(
        r"^```python\n(import asyncio\n.*?)\n\n\nasync def look", text, re.MULTILINE | re.DOTALL
    )
    lines = [line for line in program.splitlines() if line.strip()]
    assert {"client.run(", "retries=", "backoff_s=", "dead_letter=True"} <= set(
        re.findall(r"client\.run\(|\w+=(?:True)?", program)
    )
    assert len(lines) <= 23  # and one line that imports connect, one that runs it
