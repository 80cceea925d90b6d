"""Ctrl-C before the command is there to answer it: the program ends, and prints nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys
sys.argv = [{argv0!r}, "--help"]
{before}
import pydanube_cli
print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)
from pydanube_cli.main import run
run(["--help"])
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.parametrize(
    ("argv0", "before", "ends", "answers"),
    [
        ("/opt/env/bin/danube", "", "True", "True"),
        ("C:\\\\env\\\\danube.exe", "", "True", "True"),
        ("pytest", "", "False", "True"),
        ("danube", "signal.signal(signal.SIGINT, signal.SIG_IGN)", "False", "False"),  # a background job
    ],
)
def test_an_interrupt_ends_the_program_until_it_can_be_answered(
    argv0: str, before: str, ends: str, answers: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(argv0=argv0, before=before)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == (ends, answers)
