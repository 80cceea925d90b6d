"""The tier's session is as nice as the least patient of its calls; its writing threads are niced by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pydanube_broker.tier.process import READING, URGENT, WRITING, Session, nice_of, nice_thread

DEADLINE_S = 60.0


def until_shows(file: Path, value: int) -> None:
    end = time.monotonic() + DEADLINE_S
    while file.read_text() != str(value):
        assert time.monotonic() < end, f"{file.read_text()} instead of {value}"
        time.sleep(0.01)


def test_the_session_follows_the_least_patient_call(tmp_path: Path) -> None:
    file = tmp_path / "autogroup"
    file.write_text("0")
    session = Session(file, linger_s=0.05)
    until_shows(file, WRITING)
    with session.at(WRITING), session.at(URGENT):
        until_shows(file, URGENT)
        with session.at(READING):
            until_shows(file, READING)
        until_shows(file, URGENT)
    until_shows(file, WRITING)


def test_what_clients_wait_for_goes_before_what_nobody_waits_for() -> None:
    assert nice_of({"call": "fragment_read", "arguments": {"awaited": True}}) == READING
    assert nice_of({"call": "flush", "arguments": {"urgent": False}}) == WRITING
    assert nice_of({"call": "flush", "arguments": {"urgent": True}}) == URGENT


def test_nothing_is_tried_where_there_are_no_sessions_to_nice(tmp_path: Path) -> None:
    before = threading.active_count()
    with Session(tmp_path / "none").at(READING):
        assert threading.active_count() == before
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="threads are niced by themselves on Linux only")
def test_a_thread_is_niced_alone() -> None:
    found = []
    mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def work() -> None:
        nice_thread(mine + 3)
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [min(mine + 3, 19)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == mine


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the kernel does not group by session")
def test_the_kernel_takes_the_value_up_and_down() -> None:
    program = (
        "import time; from pathlib import Path; from pydanube_broker.tier.process import *\n"
        "session = Session(linger_s=0.2); file = Path('/proc/self/autogroup')\n"
        "def until(value):\n"
        f"    end = time.monotonic() + {DEADLINE_S}\n"
        "    while file.read_text().split()[-1] != str(value):\n"
        "        assert time.monotonic() < end, file.read_text()\n"
        "        time.sleep(0.02)\n"
        "until(WRITING)\n"
        "with session.at(READING): until(READING)\n"
        "until(WRITING); print('done')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, start_new_session=True, timeout=120, check=False
    )
    assert done.stdout.strip() == b"done", done.stderr.decode()
