"""docs/research/comparison.md: our program runs and prints what the page says, the others compile, the lines are counted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "research" / "comparison.md"
SECTION = re.compile(r"^## (\S+)\n.*?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = ("pydanube", "confluent-kafka", "nats-py", "redis-py")


def programs() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8")
    return {found[1]: found[2] for found in SECTION.finditer(text[text.index("\n## pydanube\n") :])}


def test_the_table_counts_the_lines_of_the_programs() -> None:
    counted = [
        str(sum(1 for line in program.splitlines() if line.strip())) for program in programs().values()
    ]
    (row,) = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if "lines of the program" in line
    ]
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == counted
    assert tuple(programs()) == NAMES


def test_the_programs_compile() -> None:
    for name, program in programs().items():
        compile(program, name, "exec")


def test_ours_prints_what_the_page_says(start_broker: Any, tmp_path: Path) -> None:
    broker = start_broker(tmp_path, 0)
    (expected,) = re.findall(
        r"^```text\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    done = subprocess.run(
        [sys.executable, "-c", programs()["pydanube"]],
        env=os.environ | {"DANUBE_BROKER_URL": broker.url, "DANUBE_ADMIN_ENDPOINT": broker.admin_url},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout == expected, done.stderr
