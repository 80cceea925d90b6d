"""Write generated files, or say which of them differ from what is there: for each `tools/gen_….py`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def write_or_compare(files: Mapping[Path, str], *, check: bool, remedy: str) -> int:
    """Write what differs; with `check` print the differences instead. Return the exit status: 1 where there are some.

    Args:
        files: path → its whole text.
        remedy: the command that writes them.
    """
    drifted = 0
    for path, wanted in files.items():
        name = path.relative_to(ROOT)
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present == wanted:
            continue
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {name}")
            continue
        drifted += 1
        lines = difflib.unified_diff(
            present.splitlines(), wanted.splitlines(), str(name), "the code", lineterm="", n=1
        )
        print("\n".join(lines))
    if drifted:
        print(f"{drifted} of {len(files)} files have drifted: {remedy}", file=sys.stderr)
    return 1 if drifted else 0
