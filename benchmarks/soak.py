"""An hour of everything at once, with deaths and a clock that steps: is anything lost, does anything grow?

    python benchmarks/soak.py                                   # an hour
    python benchmarks/soak.py --seconds 120 --kill-every 40     # a look
    python benchmarks/soak.py --folder /tmp/soak --report-only  # verdict and plot of a run that is over

One broker (small flushes, retention of three minutes, undo for a minute, small journal segments) and one process with the
load of `soak_load.py`, paced, so that a run takes about a third of a core and shows what the broker keeps rather than
what the machine can. Every five minutes the broker is killed (SIGKILL) and started again. At a third of the time its clock is
set forward by an hour, which it is to believe after half a minute, then back again; at two thirds for five seconds
only, which it is not to follow. The clock is the broker's own: a few lines of C, preloaded, add a shared offset to what the
system says (without a C compiler there is no step, and the verdict says so).

Samples every five seconds go to `samples.csv`: memory, descriptors and processor time of each process, disk, files,
topics, how late the broker's loop is (the slowest of 20 `GET /healthz`). `soak.html` draws them. Exit code 1 if something
was lost, came out of order or grows.
"""

from __future__ import annotations

import argparse
import csv
import http.client
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.soak_report import report
from tests.support.broker_process import BrokerProcess, client_environment
from tests.support.stepped_clock import Clock

SAMPLE_S: Final = 5.0
PROBES: Final = 20
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
SETTINGS: Final = {
    "DANUBE_TIER__FLUSH_BYTES": "512KiB",
    "DANUBE_TIER__FLUSH_AGE": "5s",
    "DANUBE_TIER__OBJECT_BYTES": "4MiB",
    "DANUBE_JOURNAL__SEGMENT_BYTES": "16MiB",
    "DANUBE_JOURNAL__TAIL_CACHE_BYTES": "16MiB",
    "DANUBE_JOURNAL__RETENTION_BYTES": "32MiB",
    "DANUBE_ADMIN__UNDO_GRACE": "1m",
    "DANUBE_TELEMETRY__FLUSH_AGE": "20s",
}


def program_name(pid: int) -> str:
    """`broker`, or what a helper is for, from its command line."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    if "sync_program" in words:
        return "sync"
    if "payload_process" in words:
        return "payload"
    if "tier" in words:
        return "tier"
    found = re.search(r"pydanube_\w+[./](\w+)[./]?(\w+)?", words)
    return "helper-" + (found[0].replace("/", ".") if found else "unknown")


@dataclass
class Processes:
    """Memory, descriptors and processor time by name; processor time is the share of a core since the last look."""

    _ticks: dict[int, tuple[int, float]] = field(default_factory=dict)

    def look(self, pids: dict[int, str]) -> dict[str, float]:
        found: dict[str, float] = {}
        for pid, name in pids.items():
            try:
                folder = Path(f"/proc/{pid}")
                rss = int((folder / "statm").read_text().split()[1]) * _PAGE / 1e6
                descriptors = len(os.listdir(folder / "fd"))
                words = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks, now = int(words[11]) + int(words[12]), time.monotonic()
            before, at = self._ticks.get(pid, (ticks, now - 1))
            self._ticks[pid] = (ticks, now)
            found[f"{name}_rss_mb"] = round(found.get(f"{name}_rss_mb", 0) + rss, 2)
            found[f"{name}_fds"] = found.get(f"{name}_fds", 0) + descriptors
            share = (ticks - before) / _TICKS / (now - at) * 100
            found[f"{name}_cpu_percent"] = round(found.get(f"{name}_cpu_percent", 0) + share, 1)
        return found


def folder_size(folder: Path) -> tuple[float, int]:
    """Megabytes on the disk (blocks, not lengths) and the number of files."""
    blocks = files = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                blocks += os.lstat(os.path.join(root, name)).st_blocks
            except OSError:
                continue
            files += 1
    return blocks * 512 / 1e6, files


def rows_of(metadata: Path) -> int | None:
    """Return the keys in the metadata as of its last checkpoint: the broker keeps the file locked. None if it cannot be read."""
    try:
        with closing(sqlite3.connect(f"file:{metadata}?immutable=1", uri=True, timeout=1)) as store:
            (count,) = store.execute("SELECT count(*) FROM kv").fetchone()
            return int(count)
    except sqlite3.Error:
        return None


class Probe:
    """Questions to the broker's HTTP port over one connection."""

    def __init__(self, url: str) -> None:
        self._address = urllib.parse.urlsplit(url).netloc
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, path: str) -> bytes | None:
        """Return what the page answers; None when nobody answers."""
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._address, timeout=20)
            self._connection.request("GET", path)
            return self._connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return None

    def slowest_ms(self, seconds: float) -> float | None:
        """Return the time of the slowest of `PROBES` requests, spread over this time so that the loop had a moment for each."""
        slowest = None
        for _ in range(PROBES):
            asked = time.monotonic()
            if self.ask("/healthz") is not None:
                slowest = max(slowest or 0.0, (time.monotonic() - asked) * 1000)
            time.sleep(max(0.0, seconds / PROBES - (time.monotonic() - asked)))
        return None if slowest is None else round(slowest, 2)


class Soak:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.clock = Clock(folder)
        self.broker = BrokerProcess(folder / "broker", environment={**SETTINGS, **self.clock.environment})
        self.samples: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.begun = 0.0
        self.processes = Processes()

    def say(self, event: str, **details: Any) -> None:
        at = time.monotonic() - self.begun
        self.events.append({"at_s": round(at, 1), "event": event, **details})
        (self.folder / "events.json").write_text(json.dumps(self.events))
        print(f"{time.strftime('%H:%M:%S')} {at:7.1f} s  {event} {details or ''}", flush=True)

    def run(self) -> int:
        self.begun = time.monotonic()
        self.broker.start()
        spec = {
            "url": self.broker.url, "admin": self.broker.admin, "seconds": self.options.seconds,
            "scale": self.options.scale, "folder": str(self.folder),
        }  # fmt: skip
        self.say("begin", settings=SETTINGS, clock=bool(self.clock.environment))
        with (self.folder / "load.log").open("wb") as log:
            load = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("soak_load.py")), json.dumps(spec)],
                env=client_environment(), stdout=log, stderr=log,
            )  # fmt: skip
        try:
            self._watch(load)
        finally:
            if load.poll() is None:
                load.kill()
            load.wait()
            self.broker.close()
        self.say("end", load_exit=load.returncode, broker_log=self._broker_log())
        return report(self.folder)

    def _watch(self, load: subprocess.Popen[bytes]) -> None:
        seconds, every = self.options.seconds, self.options.kill_every
        steps = [
            (seconds / 3, 3600), (seconds / 3 + min(60, seconds / 6), 0),
            (seconds * 2 / 3, 3600), (seconds * 2 / 3 + 5, 0),
        ]  # fmt: skip
        next_kill = every
        while load.poll() is None:
            at = time.monotonic() - self.begun
            if steps and at >= steps[0][0]:
                ahead = steps.pop(0)[1]
                self.say("clock" if self.clock.set(ahead) else "no clock to set", ahead_s=ahead)
            if next_kill <= at < seconds - 20:
                next_kill += every
                self.broker.kill()
                began = time.monotonic()
                self.broker.start()
                self.say(
                    "kill",
                    ready_after_s=round(time.monotonic() - began, 2),
                    recovered=self.broker.info.get("recovered"),
                )
            self._sample(load.pid)

    def _broker_log(self) -> dict[str, int]:
        """Return the warnings and errors of the broker's log, over all its starts."""
        lines = self.broker.log().splitlines()
        found = Counter(
            " ".join(words[1:3])
            for line in lines
            if (words := line.split(" "))[1:2] in (["error"], ["warning"])
        )
        found["Traceback"] = sum("Traceback (most recent" in line for line in lines)
        return dict(found)

    def _sample(self, load_pid: int) -> None:
        probe = Probe(self.broker.metrics)
        health = probe.slowest_ms(SAMPLE_S - 0.3)
        sample: dict[str, Any] = {
            "at_s": round(time.monotonic() - self.begun, 1), "life": self.broker.lives, "healthz_ms": health,
        }  # fmt: skip
        pids = {self.broker.pid: "broker", load_pid: "load"}
        for pid in self.broker.helpers():
            try:
                pids[pid] = program_name(pid)
            except OSError:
                continue
        sample |= self.processes.look(pids)
        data = self.broker.data_dir
        for name, folder in (("data", data), ("journal", data / "journal"), ("objects", data / "objects")):
            sample[f"{name}_mb"], sample[f"{name}_files"] = folder_size(folder)
        sample["metadata_mb"] = sum(path.stat().st_size for path in data.glob("metadata.sqlite*")) / 1e6
        if text := probe.ask("/status"):
            status = json.loads(text)
            tier = status["tier"]
            sample |= {
                "topics": status["topics"], "ready": status["ready"], "reasons": " ".join(each["code"] for each in status["reasons"]),
                "tier_backlog_mb": round(tier["backlog_bytes"] / 1e6, 3), "tier_errors": tier["errors"],
                "objects_merged": tier["objects_merged"], "objects_dropped": tier["objects_dropped"],
                "cold_reads": tier["cold_reads"],
            }  # fmt: skip
        if text := probe.ask("/metrics"):
            lines = [line for line in text.decode().splitlines() if line and not line.startswith("#")]
            sample["series"] = len(lines)
            stop = next(
                (line for line in lines if line.startswith("danube_loop_longest_stop_seconds ")), " 0"
            )
            sample["loop_stop_ms"] = round(float(stop.rpartition(" ")[2]) * 1000, 1)
        sample["metadata_rows"] = rows_of(data / "metadata.sqlite")
        sample |= self._progress()
        self.samples.append(sample)
        names = list(dict.fromkeys(name for each in self.samples for name in each))
        with (self.folder / "samples.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.samples)

    def _progress(self) -> dict[str, Any]:
        try:
            last = (self.folder / "progress.jsonl").read_bytes().splitlines()[-1]
        except (OSError, IndexError):
            return {}
        found = json.loads(last)
        return {f"load_{name}": value for name, value in found.items() if name != "time"}


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seconds", type=float, default=3600.0)
    options.add_argument("--kill-every", type=float, default=300.0)
    options.add_argument("--scale", type=float, default=1.0, help="of the load's rates")
    options.add_argument("--folder", type=Path, help="for data, samples and the plot; it is kept")
    options.add_argument("--report-only", action="store_true")
    chosen = options.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="danube-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    return report(folder) if chosen.report_only else Soak(chosen, folder).run()


if __name__ == "__main__":
    sys.exit(main())
