"""How far a replay has come that was interrupted: the copies in the target say themselves what they are copies of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydanube_core.errors import ClusterError

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]

_ATTRIBUTE: Final = "x-replayed-from"  # /namespace/topic@offset
_SETTLED_S: Final = 0.3  # what was on its way into the journal is there
_LOOKS: Final = 10


class ReplayAccount:
    """Made before the replay begins, asked after it was interrupted.

    Args:
        ask: carries out an operation, by name and arguments.
        target: the topic that is written.
    """

    def __init__(self, ask: Ask, target: str) -> None:
        self._ask = ask
        self._target = target
        self._before = self._heads()

    def copied_until(self) -> dict[str, int]:
        """For each concrete topic that is replayed, where to go on; empty where nothing was copied, or nobody knows."""
        try:
            heads = self._heads()
            for _ in range(_LOOKS):
                time.sleep(_SETTLED_S)
                again = self._heads()
                if again == heads:
                    break
                heads = again
            found: dict[str, int] = {}
            for part, head in heads.items():
                if head == self._before.get(part, 0):
                    continue
                (last,) = self._ask(
                    "messages.peek", {"topic": part, "from": f"offset:{head - 1}", "limit": 1}
                )["items"]
                source, _, offset = str(last["untrusted"]["attributes"].get(_ATTRIBUTE, "")).rpartition("@")
                if source:
                    found[source] = max(found.get(source, 0), int(offset) + 1)
            return found
        except (ClusterError, ValueError, KeyError):
            return {}

    def _heads(self) -> dict[str, int]:
        try:
            asked = self._ask("messages.peek", {"topic": self._target, "from": "latest", "limit": 1})
        except ClusterError:
            return {}  # the replay will make it
        return {part: int(offset) for part, offset in asked["next_offsets"].items()}
