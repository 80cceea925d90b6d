"""Claims of places that have one holder at a time: a prefix on etcd, an object store.

A holder leaves a name of its own at the place, another one with each start. A later start takes the place for its own if
the name there is one that it noted. So a claim is three steps: note the name that is about to be left, leave it, note that
it is held. A kill between them leaves both names in the note.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Generic[N]):
    """The note of a holder. `held`: the name that it left last. `begun`: the one that it was about to leave."""

    held: N | None
    begun: N | None = None

    def __contains__(self, name: N) -> bool:
        """Return whether the holder left a name, or may have."""
        return name in (self.held, self.begun)

    async def take(
        self,
        name: N,
        *,
        note: Callable[[Claim[N]], Awaitable[None]],
        leave: Callable[[], Awaitable[None]],
    ) -> None:
        """Claim a place under another name.

        Args:
            note: stores the holder's note durably.
            leave: leaves the name at the place. If it raises, the place is not claimed, or that is unknown.
        """
        await note(Claim(held=self.held, begun=name))
        await leave()
        await note(Claim(held=name))
