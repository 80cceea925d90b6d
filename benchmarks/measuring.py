"""What several benchmarks need: their arguments, a command of danube, and what a process, a thread and a disk took."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.broker_process import client_environment, danube_command

#: a test's broker has small segments, which make it start sooner; a broker that is measured has those of everybody
USUAL: Final = {"DANUBE_JOURNAL__SEGMENT_BYTES": "64MiB"}


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark; `text`: its docstring."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def danube(*words: str, environment: Mapping[str, str] | None = None) -> Any:
    """Return what `danube WORDS --json` prints."""
    done = subprocess.run(
        [*danube_command(), *words, "--json"],
        env=client_environment(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"danube {' '.join(words)}: {done.stderr.decode()[-2000:]}")
    return json.loads(done.stdout)


def end_to_end_per_s(messages: int, *words: str, environment: Mapping[str, str] | None = None) -> float:
    """Return the messages a second of one run of `danube bench e2e`."""
    told = danube("bench", "e2e", "--runs", "1", "--messages", str(messages), *words, environment=environment)
    return float(told["median"]["messages_per_s"])


def processor_s(pid: int) -> float:
    """Return the processor seconds of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main_thread_s(pid: int) -> float:
    """Return the processor seconds of a process's first thread, which runs its loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def resident_bytes(pid: int, *, peak: bool = False) -> int:
    """Return the memory of a process, now or at the most since its start."""
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def sync_s(folder: Path, count: int, size: int) -> list[float]:
    """Return the seconds of each of so many `pwrite` and `fdatasync`, over a file that is there already."""
    path, taken = folder / "probe", []
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR)
    try:
        os.write(descriptor, bytes(count * size))
        os.fsync(descriptor)
        for number in range(count):
            begun = time.perf_counter()
            os.pwrite(descriptor, bytes(size), number * size)
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - begun)
    finally:
        os.close(descriptor)
        path.unlink()
    return taken
