"""Put the faults of tools/faults_named.toml into the committed tree, one at a time: the named test of each must fail.

    python -m tools.faults_named [TEXT]

TEXT: only faults whose promise or path contains it. The tree is copied as tools/faults.py does, nothing else is changed.
Exit status: 0 if every named test fails with its fault, and passes without it.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.faults import HOME, ONE_TEST_S, ROOT, SLACK_S, TREE, copy_tree, environment, git, run_tests

NAMED: Final = ROOT / "tools" / "faults_named.toml"
_FAILED: Final = 1  # pytest: tests ran, and one failed


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFault:
    """One fault: `old`, which stands once in the file, becomes `new`, and `test` fails."""

    promise: str
    path: str
    old: str
    new: str
    test: str

    def applied_to(self, source: str) -> str:
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.path} has {source.count(self.old)} times {self.old!r}, the fault needs it once: "
                f"write `old` of {self.promise!r} in {NAMED.name} as the code is now"
            )
        return source.replace(self.old, self.new)


def named_faults() -> list[NamedFault]:
    return [NamedFault(**each) for each in tomllib.loads(NAMED.read_text(encoding="utf-8"))["fault"]]


def verdict(fault: NamedFault) -> str:
    """Return what the fault's test does about it: caught, SURVIVED, or the reason why that is not known."""
    file = TREE / fault.path
    source = file.read_text(encoding="utf-8")
    variables = environment(PYTHONDONTWRITEBYTECODE="1")
    try:
        file.write_text(fault.applied_to(source), encoding="utf-8")
        status = _status(fault.test, variables)
    finally:
        file.write_text(source, encoding="utf-8")
    if status == 0:
        return "SURVIVED"
    if status not in (_FAILED, None):  # None: it waits for what the fault keeps away
        return f"NOT RUN (pytest's status {status}, its output is in {HOME / 'output.txt'})"
    return "caught"


def _status(test: str, variables: dict[str, str]) -> int | None:
    return run_tests([test], variables, "-x", f"--timeout={ONE_TEST_S}", limit_s=2 * ONE_TEST_S + SLACK_S)[0]


def main(arguments: Sequence[str]) -> int:
    HOME.mkdir(parents=True, exist_ok=True)
    copy_tree(git("rev-parse", "HEAD").strip())
    text = arguments[0] if arguments else ""
    chosen = [each for each in named_faults() if text in each.promise or text in each.path]
    bad = 0
    for fault in chosen:
        found = verdict(fault)
        bad += found != "caught"
        print(f"{found:9} {fault.promise}  ({Path(fault.path).name}; {fault.test})", flush=True)
    sound = environment()
    for test in sorted({fault.test for fault in chosen}):
        if _status(test, sound) != 0:
            bad += 1
            print(f"FAILS WITHOUT A FAULT  {test}", flush=True)
    print(f"{len(chosen)} faults, {bad} of them or of their tests not in order")
    return 0 if chosen and not bad else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
