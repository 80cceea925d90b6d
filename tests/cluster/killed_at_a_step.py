"""Brokers that kill themselves with SIGKILL at a step of a take-over, once a test names it.

`environment` has the brokers load this file as `sitecustomize`. It wraps the functions of `STEPS` so that the first
process which reaches a named step, of all that share the folder of names, removes the name and ends itself.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

FOLDER: Final = "TEST_KILLED_AT"

#: step → module, class or "", function, whether the process dies before or after it
STEPS: Final = {
    # of the leader
    "planned": ("moves.take_over", "TakeOvers", "plan", "after"),
    "fenced": ("moves.take_over", "", "fence", "after"),
    "fence recorded": ("moves.take_over", "TakeOvers", "fence", "after"),
    "taken": ("moves.removed_brokers", "RemovedBrokers", "_take_together", "after"),
    # of the heir
    "replaying": ("chain.replay", "_Folder", "finish", "before"),
    "replayed": ("moves.inheritance", "Inheritances", "_replayed", "after"),
    "copying": ("copying.arrival", "Arrival", "take", "after"),
    "adopting": ("copying.arrival", "Arrival", "_adopt", "before"),
    "adopted": ("copying.arrival", "Arrival", "finish", "after"),
    "opening": ("moves.move_ends", "MoveEnds", "send", "before"),
    "opened": ("moves.move_ends", "MoveEnds", "_transact", "after"),
    "serving": ("moves.moves", "Moves", "serve", "after"),
}


def environment(folder: Path) -> dict[str, str]:
    """Make the folder of names and return the variables of the brokers."""
    names, site = folder / "steps", folder / "site"
    for each in (names, site):
        each.mkdir()
    shutil.copy(__file__, site / "sitecustomize.py")
    return {FOLDER: str(names), "PYTHONPATH": str(site)}


def name(folder: Path, step: str) -> None:
    """Kill the next process that reaches the step."""
    assert step in STEPS
    (folder / "steps" / step).touch()


def is_reached(folder: Path, step: str) -> bool:
    return not (folder / "steps" / step).exists()


def function_of(step: str) -> tuple[Any, Callable[..., Any]]:
    """Return the module or class that has the function of a step, and the function."""
    module, owner, function, _ = STEPS[step]
    holder: Any = importlib.import_module(f"pydanube_broker.{module}")
    if owner:
        holder = getattr(holder, owner)
    return holder, getattr(holder, function)


def _wrap(names: Path, step: str) -> None:
    _, _, function, when = STEPS[step]
    target, inner = function_of(step)

    def reach() -> None:
        try:
            (names / step).unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    if when == "before":

        def wrapped(*given: Any, **named: Any) -> Any:
            reach()
            return inner(*given, **named)

    else:

        async def wrapped(*given: Any, **named: Any) -> Any:
            result = await inner(*given, **named)
            reach()
            return result

    setattr(target, function, wrapped)


if __name__ == "sitecustomize" and "-m" not in sys.orig_argv:  # not in the tier's processes
    for each in STEPS:
        _wrap(Path(os.environ[FOLDER]), each)
