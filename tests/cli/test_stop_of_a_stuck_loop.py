"""SIGTERM ends the process whatever holds its loop."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import re, sys, time
import anyio
from pydanube_cli import composition

composition.AFTER_GRACE_S = 0.1

def expression():
    re.match("(a*)*b", "a" * 64)

def python():
    while True:
        pass

async def main():
    stop = composition._Stop(0.2)
    with stop.installed():
        async with stop.watched():
            print("stuck", flush=True)
            globals()[sys.argv[1]]()

anyio.run(main)
"""


@pytest.mark.parametrize("held_by", ["expression", "python"])
def test_sigterm_ends_a_broker_whose_loop_is_stuck(held_by: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, held_by], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 1
        finally:
            process.kill()
