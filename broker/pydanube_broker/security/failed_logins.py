"""Wrong credentials, by the address they come from: how long the next refusal waits, and which are told of. Pure.

Nobody guesses a token of 256 random bits; but who tries should cost the broker little, and should be seen. Whoever
shows something good is not slowed, from the same address neither.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MOST_ADDRESSES: Final = 4096  # that are remembered; the one that was quiet longest is forgotten for another
FORGOTTEN_AFTER_S: Final = 60.0
FREE: Final = 3  # failures that nobody waits for: a wrong file, an old environment
STEPS: Final = 3  # doublings, up to the longest wait


@dataclass(slots=True)
class _Failures:
    count: int
    last_s: float


class FailedLogins:
    """See the module. `longest_s`: the longest wait."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._found: OrderedDict[str, _Failures] = OrderedDict()

    def note(self, address: str, now_s: float) -> int | None:
        """One more from there. Returns how many it has been where that is worth telling: the first, 10th, 100th …"""
        found = self._found.pop(address, None)
        if found is None or now_s - found.last_s > FORGOTTEN_AFTER_S:
            found = _Failures(0, now_s)
        found.count += 1
        found.last_s = now_s
        self._found[address] = found
        if len(self._found) > MOST_ADDRESSES:
            self._found.popitem(last=False)
        return found.count if str(found.count).strip("0") == "1" else None

    def wait_s(self, address: str, now_s: float) -> float:
        """How long a refusal to that address waits."""
        found = self._found.get(address)
        if found is None or found.count <= FREE or now_s - found.last_s > FORGOTTEN_AFTER_S:
            return 0.0
        doubled = min(found.count - FREE - 1, STEPS)
        return self._longest_s * float(2 ** (doubled - STEPS))
