"""The console as a person has it: `danube tui` in a pseudoterminal, against a broker with 10 000 topics.

    python benchmarks/console.py                              # fills a folder first (a minute), then measures
    python benchmarks/console.py --data /tmp/many --assert
    python benchmarks/console.py --data /tmp/many --minutes 60        # does it grow while it is left open?

First paint: from the start of the process to the first screen that has words on it, beside an application of Textual that
shows one word, in turn. A key: from its byte going in to the last byte of the screen that shows what it did. Shares are of
one core, from /proc. A machine that is busy with something else (see the load average) makes all of it slower: beside the
wall time of keys stands the processor time of the screen's thread, and what a key takes in the application with one word,
measured in the same minute under the same load (`empty_key`; `_ratio` is ours by that).
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydanube import connect

from benchmarks.many_topics import fill, running
from benchmarks.measuring import main_thread_s, parser_of, processor_s, resident_bytes
from tests.support.broker_process import BrokerProcess

GOALS: Final[dict[str, float]] = {
    "paint_ratio": 2.0,
    "filter_ms": 50.0,
    "sort_ms": 100.0,
    "rss_mib": 150.0,
    "tail_key_ms": 100.0,
    "idle_share": 0.03,
    "broker_share": 0.01,
    "growth_mib": 5.0,
}
TAIL_RATE: Final = 50_000
TURNS: Final = 6  # of a broker that is asked and one that is left alone
EMPTY: Final = (
    "from textual.app import App\nfrom textual.widgets import Static\n"
    "class Empty(App):\n    def compose(self):\n        yield Static('EMPTY')\n"
    "    def on_key(self, event):\n        self.query_one(Static).update(f'saw {event.key}')\nEmpty().run()"
)
_CONTROL: Final = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A program in a pseudoterminal of 160 columns and 48 lines."""

    def __init__(self, *words: str) -> None:
        self._master, slave = os.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 48, 160, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        environment["XDG_STATE_HOME"] = self._state = tempfile.mkdtemp()  # nothing is remembered
        self.begun = time.perf_counter()
        self._process = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.pid = self._process.pid

    def key(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, text: str, *, wait_s: float = 60.0, quiet_s: float = 0.02) -> float:
        """Read until the text was drawn and what follows it; when its last byte came."""
        seen, found, last = b"", False, time.perf_counter()
        end = last + wait_s
        while time.perf_counter() < end:
            ready, _, _ = select.select([self._master], [], [], quiet_s if found else 1.0)
            if ready:
                seen += os.read(self._master, 1 << 16)
                last = time.perf_counter()
                found = found or text.encode() in _CONTROL.sub(b"", seen)
            elif found:
                return last
        if found:
            return last
        raise SystemExit(
            f"{text!r} was not drawn in {wait_s} s; the last was {_CONTROL.sub(b'', seen)[-400:]!r}"
        )

    def shown(self, pattern: str) -> str:
        """Read the next screens until the pattern is found; return its group."""
        seen, end = b"", time.perf_counter() + 20
        while time.perf_counter() < end:
            if select.select([self._master], [], [], 1.0)[0]:
                seen += os.read(self._master, 1 << 16)
                if found := re.findall(pattern.encode(), _CONTROL.sub(b"", seen)):
                    return str(found[-1].decode())
        raise SystemExit(f"{pattern} was not drawn")

    def drain(self, seconds: float) -> None:
        """Read and drop output for this many seconds."""
        end = time.perf_counter() + seconds
        while (left := end - time.perf_counter()) > 0:
            if select.select([self._master], [], [], left)[0]:
                os.read(self._master, 1 << 16)

    def close(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._master)
        shutil.rmtree(self._state)


@contextmanager
def terminal(*words: str) -> Iterator[Terminal]:
    it = Terminal(*words)
    try:
        yield it
    finally:
        it.close()


def console(broker: BrokerProcess, *flags: str) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "pydanube_cli.main",
        "tui",
        "--broker",
        broker.url,
        "--admin",
        broker.admin,
        *flags,
    )


# -- figures ---------------------------------------------------------------------------------------------------------


def first_paint(broker: BrokerProcess, times: int) -> dict[str, float]:
    """Wall and processor time to the first words, ours and an empty application's in turn."""
    wall: dict[str, list[float]] = {"ours": [], "empty": []}
    spent: dict[str, list[float]] = {"ours": [], "empty": []}
    programs = {"ours": (console(broker), "Overview"), "empty": ((sys.executable, "-c", EMPTY), "EMPTY")}
    for _ in range(times):
        for name, (words, text) in programs.items():
            with terminal(*words) as it:
                wall[name].append(it.until(text, quiet_s=0.001) - it.begun)
                spent[name].append(processor_s(it.pid))
    found = {f"paint_{name}_s": round(statistics.median(taken), 3) for name, taken in wall.items()}
    found |= {
        f"paint_{name}_processor_s": round(statistics.median(taken), 3) for name, taken in spent.items()
    }
    found["paint_wall_ratio"] = round(found["paint_ours_s"] / found["paint_empty_s"], 2)
    found["paint_ratio"] = round(found["paint_ours_processor_s"] / found["paint_empty_processor_s"], 2)
    return found


def empty_key(times: int) -> dict[str, float]:
    """What a key takes in an application that shows one word: the terminal, the machine and Textual without us."""
    wall: list[float] = []
    spent: list[float] = []
    with terminal(sys.executable, "-c", EMPTY) as it:
        it.until("EMPTY")
        it.drain(0.5)
        for number in range(times * 3):
            letter = "abcdefgh"[number % 8]
            begun, before = time.perf_counter(), main_thread_s(it.pid)
            it.key(letter)
            wall.append(it.until(f"saw {letter}") - begun)
            spent.append(main_thread_s(it.pid) - before)
            it.drain(0.05)
    return {"ms": statistics.median(wall) * 1000, "processor_ms": statistics.median(spent) * 1000}


def keys(broker: BrokerProcess, topics: int, times: int) -> dict[str, float]:
    """A key of the filter, and an order, over all topics; and the memory with them."""
    filtered: list[float] = []
    sorted_: list[float] = []
    spent: dict[str, list[float]] = {"filter": [], "sort": []}
    names = [f"/default/topic-{number:05d}" for number in range(topics)]
    with terminal(*console(broker, "--view", "topics")) as it:
        it.until("topic-00040")
        it.key("p")
        it.until("paused")
        for number in range(times):
            it.key("/")
            it.until("/regex/", quiet_s=0.05)
            it.key("topic:")  # another column may have a number with these digits
            it.until(f"/topic:  {topics:,}", quiet_s=0.1)
            typed = ""
            for letter in f"{(number * 37) % 1000:03d}":
                typed += letter
                left = sum(typed in name for name in names)
                it.drain(0.05)
                begun, before = time.perf_counter(), main_thread_s(it.pid)
                it.key(letter)
                filtered.append(it.until(f"/topic:{typed}  {left:,}") - begun)
                spent["filter"].append(main_thread_s(it.pid) - before)
            it.key("\x1b")
            it.drain(0.3)
        for _ in range(times):
            for key, mark in (("M", "▼"), ("N", "▲"), ("v", "▼")):
                begun, before = time.perf_counter(), main_thread_s(it.pid)
                it.key(key)
                sorted_.append(it.until(mark) - begun)
                spent["sort"].append(main_thread_s(it.pid) - before)
                it.drain(0.05)
        rss = resident_bytes(it.pid) / (1 << 20)
    empty = empty_key(times)
    return {
        **{f"empty_key_{name}": round(value, 1) for name, value in empty.items()},
        "filter_ratio": round(statistics.median(filtered) * 1000 / empty["ms"], 2),
        "sort_ratio": round(statistics.median(sorted_) * 1000 / empty["ms"], 2),
        "filter_ms": round(statistics.median(filtered) * 1000, 1),
        "filter_worst_ms": round(max(filtered) * 1000, 1),
        "sort_ms": round(statistics.median(sorted_) * 1000, 1),
        "sort_worst_ms": round(max(sorted_) * 1000, 1),
        **{f"{name}_processor_ms": round(statistics.median(each) * 1000, 1) for name, each in spent.items()},
        "rss_mib": round(rss, 1),
    }


def idle(broker: BrokerProcess, seconds: float, minutes: float) -> dict[str, float]:
    """Shares of a core while a view stands open, all topics and the overview; and, over minutes, what the console grows."""
    found: dict[str, float] = {}
    for view, shown, names in (
        ("topics", "topic-00040", ("idle_share", "broker_share", "broker_alone_share")),
        ("overview", "behind", ("overview_share", "overview_broker_share", "overview_broker_alone_share")),
    ):
        with terminal(*console(broker, "--view", view)) as it:
            it.until(shown)
            it.drain(10.0)  # the whole list has come, and a round of its pages
            found |= dict(zip(names, _shares(broker, it, seconds), strict=True))
            if minutes and view == "topics":
                it.drain(max(0.0, min(600.0, minutes * 10) - seconds * 2 - 10))
                begun = resident_bytes(it.pid) / (1 << 20)
                it.drain(minutes * 60 - min(600.0, minutes * 10))
                found["growth_mib"] = round(resident_bytes(it.pid) / (1 << 20) - begun, 2)
    return found


def _shares(broker: BrokerProcess, it: Terminal, seconds: float) -> tuple[float, float, float]:
    """Return shares of a core: the console's, what the broker takes beyond its share while the console is paused, and that share.

    Asked and paused take turns: for minutes after its start a broker looks at everything it has, and that is not the
    console's. In seconds of one and then of the other it was some percent of a core either way.
    """
    ours = 0.0
    spent = {"asked": 0.0, "paused": 0.0}
    for _ in range(TURNS):
        for state in spent:
            before, theirs = processor_s(it.pid), processor_s(broker.pid)
            it.drain(seconds / TURNS)
            spent[state] += processor_s(broker.pid) - theirs
            ours += processor_s(it.pid) - before if state == "asked" else 0.0
            it.key("p")  # from the one to the other
    more = max(0.0, spent["asked"] - spent["paused"])
    return round(ours / seconds, 4), round(more / seconds, 4), round(spent["paused"] / seconds, 4)


def _send(url: str, rate: int, begun: Any, stop: Any) -> None:
    async def sending() -> None:
        async with connect(url) as client, client.producer("flood") as producer:
            since, sent = time.monotonic(), 0
            while not stop.is_set():
                await producer.send_many([b"%024d" % (sent + number) for number in range(rate // 50)])
                sent += rate // 50
                begun.set()
                await asyncio.sleep(max(0.0, sent / rate - (time.monotonic() - since)))
            print(f"{sent / (time.monotonic() - since):,.0f} messages a second were sent", file=sys.stderr)

    asyncio.run(sending())


def tail(broker: BrokerProcess, rate: int, times: int) -> dict[str, float]:
    """Keys while a topic is read that is faster than any screen."""
    spawn = multiprocessing.get_context("spawn")
    begun, stop = spawn.Event(), spawn.Event()
    sender = spawn.Process(target=_send, args=(broker.url, rate, begun, stop))
    sender.start()
    taken: list[float] = []
    spent: list[float] = []
    try:
        begun.wait()
        with terminal(*console(broker, "--view", "messages flood")) as it:
            it.shown(r"dropped by view: ([1-9]\S*)")
            it.drain(3)
            before = main_thread_s(it.pid)
            it.drain(3)
            busy = (main_thread_s(it.pid) - before) / 3
            for _ in range(times):
                pressed, before = time.perf_counter(), main_thread_s(it.pid)
                it.key("?")
                it.until("arrows scroll", quiet_s=0.001)
                taken.append(time.perf_counter() - pressed)
                spent.append(main_thread_s(it.pid) - before)
                it.key("\x1b")
                it.drain(0.5)
            dropped = it.shown(r"dropped by view: ([1-9]\S*)")
        empty = empty_key(times)
    finally:
        stop.set()
        sender.join()
    return {
        "tail_key_ms": round(statistics.median(taken) * 1000, 1),
        "tail_key_worst_ms": round(max(taken) * 1000, 1),
        "tail_key_processor_ms": round(statistics.median(spent) * 1000, 1),
        "tail_empty_key_ms": round(empty["ms"], 1),
        "tail_key_ratio": round(statistics.median(taken) * 1000 / empty["ms"], 2),
        "tail_loop_share": round(busy, 3),
        "tail_dropped": dropped,  # type: ignore[dict-item]
    }


def missed(found: Mapping[str, Any]) -> list[str]:
    return [f"{name}: {found[name]} > {goal}" for name, goal in GOALS.items() if found.get(name, 0) > goal]


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--data", type=Path, help="a filled folder, made where it is not there; else a new one"
    )
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=60.0, help="idle time that is measured")
    parser.add_argument("--minutes", type=float, default=0.0, help="60: the growth from minute 10 on")
    parser.add_argument("--only", choices=("paint", "keys", "idle", "tail"), help="one of the figures")
    parser.add_argument(
        "--assert", dest="check", action="store_true", help="exit with 1 where a goal is missed"
    )
    given = parser.parse_args()
    found: dict[str, Any] = {"load_average": os.getloadavg()[0], "topics": given.topics}
    with tempfile.TemporaryDirectory() as folder:
        data = given.data or Path(folder) / "filled"
        if not data.exists():
            asyncio.run(fill(data, given.topics))
        with running(data, Path(folder)) as broker:
            shares = {
                "paint": lambda: first_paint(broker, given.times),
                "keys": lambda: keys(broker, given.topics, given.times),
                "tail": lambda: tail(broker, TAIL_RATE, given.times),
                "idle": lambda: idle(broker, given.seconds, given.minutes),
            }
            for name, measure in shares.items():
                if given.only in (None, name):
                    found |= measure()
        shutil.rmtree(Path(folder) / "data", ignore_errors=True)
    print(json.dumps(found, indent=1))
    for line in missed(found):
        print(f"missed: {line}", file=sys.stderr)
    return 1 if given.check and missed(found) else 0


if __name__ == "__main__":
    sys.exit(main())
