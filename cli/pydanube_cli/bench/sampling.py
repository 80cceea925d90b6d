"""Samples of a process: which functions of ours its main thread was running.

The timer counts processor time, so an idle event loop gives no samples. A sample counts for the innermost
function of ours, and its stage is the package of that function: a room of the broker, a part of the core or of
the client.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from types import FrameType
from typing import Any, Final

# Seconds of processor time. Kernels with a slower clock take fewer samples: shares stay right.
INTERVAL_S: Final = 0.001
MOST_FUNCTIONS: Final = 40


class Sampler:
    """Counts samples of the main thread by function, from `start` to `stop`."""

    def __init__(self) -> None:
        self._own: Counter[str] = Counter()
        self._within: Counter[str] = Counter()
        self._begun_s = 0.0
        self.running = False

    def start(self) -> None:
        self._own.clear()
        self._within.clear()
        self._begun_s = time.process_time()
        self.running = True
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> dict[str, Any]:
        """Return processor time, number of samples, and samples by function: by itself, and with all it calls."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        self.running = False
        return {
            "cpu_s": time.process_time() - self._begun_s,
            "samples": self._own.total(),
            "own": dict(self._own),
            "within": dict(self._within.most_common(MOST_FUNCTIONS)),
        }

    def _sample(self, _signal: int, frame: FrameType | None) -> None:
        seen: dict[str, None] = {}
        while frame is not None:
            name = frame.f_code.co_filename
            at = name.rfind(f"{os.sep}pydanube")
            if at >= 0 and not name.startswith("pydanube_cli", at + 1):
                seen[f"{name[at + 1 :]}:{frame.f_code.co_qualname}"] = None
            frame = frame.f_back
        self._own[next(iter(seen), "event loop")] += 1
        self._within.update(seen.keys())


def stages(samples: dict[str, Any], messages: int) -> dict[str, Any]:
    """Return the share of each stage of a process's processor time, and the functions that hold most.

    `us_per_message` is the processor time for each message of the run.
    """
    total = max(1, samples["samples"])
    us = samples["cpu_s"] * 1e6 / max(1, messages)
    by_stage: dict[str, Counter[str]] = {}
    for name, count in samples["own"].items():
        by_stage.setdefault(stage_of(name), Counter())[name] += count
    ordered = sorted(by_stage.items(), key=lambda item: -item[1].total())

    def figures(count: int) -> dict[str, float]:
        return {"share": round(count / total, 4), "us_per_message": round(us * count / total, 2)}

    return {
        "samples": samples["samples"],
        "us_per_message": round(us, 2),
        "stages": [
            {
                "stage": stage,
                **figures(own.total()),
                "functions": [{"function": name, **figures(n)} for name, n in own.most_common(5)],
            }
            for stage, own in ordered
        ],
        "within": [{"function": name, **figures(n)} for name, n in samples["within"].items()],
    }


def stage_of(function: str) -> str:
    """Return the stage of a function, such as `journal` or `core.http2`."""
    package, *rest = function.partition(":")[0].split("/")
    if not rest:
        return package
    room = rest[0].removesuffix(".py")
    if package == "pydanube_broker":
        return room
    return f"{'client' if package == 'pydanube' else package.removeprefix('pydanube_')}.{room}"
