"""Remember lists as last returned, so that the next answer can have only the changes.

For lists without change reports. Brokers report the changes of topics and subscriptions. All rows are made,
and a digest of each is compared with the stored one. Memory is bounded in rows. The least recently used list
is forgotten first, and a mark of it then returns the whole list.

Lists are remembered whether they are followed or not, because `changed_since` also takes the `mark` or the `as_of` of a first
answer, whose caller has not said yet that it will follow (docs/interface.md).
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydanube_core.recent import RecentDict

from pydanube_admin.engine.models import Result
from pydanube_admin.engine.page_tokens import Key

MOST_ROWS: Final = 20_000  # of all lists together
MOST_GONE: Final = 1000  # of one list
MOST_TIMES: Final = 1000

Identity = tuple[Any, ...]


@dataclass(slots=True)
class _Kept:
    """One list: for each row a digest and the number of its last change."""

    since: int  # marks below it are too old
    rows: dict[Identity, tuple[bytes, int]] = field(default_factory=dict)
    gone: dict[Identity, int] = field(default_factory=dict)  # ascending


@dataclass(frozen=True, slots=True)
class Changed:
    """The changes since a mark."""

    rows: frozenset[Identity]
    gone: Sequence[Identity]


class ListMemory:
    """See the module. Single user: the loop."""

    def __init__(self, *, most_rows: int = MOST_ROWS) -> None:
        self.life = secrets.token_hex(4)  # marks of another one mean nothing here
        self._most_rows = most_rows
        self._last = 0
        self._lists: OrderedDict[bytes, _Kept] = OrderedDict()
        self._marks: RecentDict[tuple[bytes, str], Key] = RecentDict(MOST_TIMES)

    def mark(self, scope: bytes) -> int:
        """Return the mark of a list as last seen, or 0, which is never valid, if it is not kept."""
        kept = self._lists.get(scope)
        return 0 if kept is None else max(self._last, kept.since)

    def see(self, scope: bytes, rows: Mapping[Identity, Result]) -> int:
        """Take in a whole list, and return its mark."""
        if len(rows) > self._most_rows:
            self._lists.pop(scope, None)
            return 0
        now = self._last + 1
        kept = self._lists.get(scope)
        if kept is None:
            kept = self._lists[scope] = _Kept(since=now)
            self._last = now
        self._lists.move_to_end(scope)
        for identity, row in rows.items():
            digest = hashlib.blake2b(row.model_dump_json().encode(), digest_size=8).digest()
            known = kept.rows.get(identity)
            if known is None or known[0] != digest:
                kept.rows[identity] = (digest, now)
                kept.gone.pop(identity, None)
                self._last = now
        for identity in [each for each in kept.rows if each not in rows]:
            del kept.rows[identity]
            kept.gone[identity] = self._last = now
        while len(kept.gone) > MOST_GONE:
            kept.since = max(kept.since, kept.gone.pop(next(iter(kept.gone))))
        while sum(len(each.rows) + len(each.gone) for each in self._lists.values()) > self._most_rows:
            self._lists.popitem(last=False)
        return self.mark(scope)

    def changed(self, scope: bytes, mark: int) -> Changed | None:
        """Return the changes between a mark and the last `see`, or None if the mark is too old."""
        kept = self._lists.get(scope)
        if kept is None or not kept.since <= mark <= self._last:
            return None
        return Changed(
            rows=frozenset(identity for identity, (_, number) in kept.rows.items() if number > mark),
            gone=[identity for identity, number in kept.gone.items() if number > mark],
        )

    # -- times as marks --------------------------------------------------------------------------------------

    def note_time(self, scope: bytes, as_of: str, mark: Key) -> None:
        """Note the mark of an answer of this time. The first of a millisecond counts: no change is missed."""
        self._marks.setdefault((scope, as_of), mark)

    def of_time(self, scope: bytes, as_of: str) -> Key | None:
        """Return the mark of this process' answer with that `as_of`, or None if it is not remembered."""
        return self._marks.get((scope, as_of))
