"""The journal's syncs under a test's control: counted, held, let go, or made to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import pytest
from pydanube_broker.journal.helper import HelperSyncer


class SyncGate:
    """Stands before the sync helpers of every broker in this process until the end of the test.

    As a context manager it lets go what is held at the end of the block, also when the test fails there.

    Args:
        held: requests wait for `let_go` or `fail`; otherwise they pass.
        asked: called before each request is passed on or held.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, held: bool = True, asked: Callable[[], object] = bool
    ) -> None:
        self.requests: list[tuple[HelperSyncer, tuple[int, ...], int]] = []  # those that are held
        self.syncers: set[HelperSyncer] = set()  # those that were asked
        self._held, self._sync = held, HelperSyncer.sync

        def sync(syncer: HelperSyncer, slots: tuple[int, ...], lsn: int) -> None:
            asked()
            self.syncers.add(syncer)
            if self._held:
                self.requests.append((syncer, slots, lsn))
            else:
                self._sync(syncer, slots, lsn)

        monkeypatch.setattr(HelperSyncer, "sync", sync)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Pass on what is held, and hold nothing more."""
        self._held = False
        for request in self._taken():
            self._sync(*request)

    def fail(self, error: OSError) -> None:
        """Answer what is held with an error of the disk."""
        for syncer, _, lsn in self._taken():
            syncer.done(lsn, error, 0.0, 0.0)

    def _taken(self) -> list[tuple[HelperSyncer, tuple[int, ...], int]]:
        taken, self.requests = self.requests, []
        return taken
