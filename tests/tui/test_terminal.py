"""What a terminal is sent by `danube tui`: no colour where none is wanted, and its mouse left alone."""

from __future__ import annotations

import os
import re
import select
import struct
import subprocess
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.support.broker_process import danube_command

NOBODY = "http://127.0.0.1:9"
COLOURS = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")
RED_IS_NOT_GREEN = re.compile(r"[34]8;2;(\d+);(?!\1;)\d+;\d+")  # greys are no colour either
MOUSE = re.compile(r"\x1b\[\?100[0236]h")


def sent(folder: Path, *flags: str, **environment: str) -> str:
    """All that the terminal was sent until the console said that nobody answers."""
    master, slave = os.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [*danube_command(), "tui", "--admin", NOBODY, "--broker", NOBODY, *flags],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        cwd=folder,
        env={**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(folder), **environment},
    )
    os.close(slave)
    seen, end = b"", time.monotonic() + 90
    try:
        while b"connection lost" not in seen:
            assert time.monotonic() < end, seen[-400:]
            if select.select([master], [], [], 1.0)[0]:
                seen += os.read(master, 1 << 16)
    finally:
        process.kill()
        process.wait()
        os.close(master)
    return seen.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("flags", "environment", "coloured"),
    [(("--no-mouse",), {"NO_COLOR": "1"}, False), ((), {"NO_COLOR": "", "COLORTERM": "truecolor"}, True)],
)
def test_the_terminal_is_sent_what_was_asked_for(
    tmp_path: Path, flags: tuple[str, ...], environment: dict[str, str], coloured: bool
) -> None:
    text = sent(tmp_path, *flags, **environment)
    assert bool(COLOURS.search(text)) == bool(RED_IS_NOT_GREEN.search(text)) == coloured
    assert bool(MOUSE.search(text)) == ("--no-mouse" not in flags)
