"""Marks in answers of lists, from which the next answer can have only the changes.

A mark holds the position of each source of changes when the list was read. A source is a broker that follows
its topics and subscriptions, or the memory of this admin core (`list_memory`). A mark of other arguments is
refused. If a source no longer covers the mark, the answer is the whole list, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from pydanube_core.errors import InvalidArgument, PageInvalid
from pydanube_core.list_keys import ListChanges
from pydanube_core.security.identity import current_identity
from pydanube_core.spelling import shown

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.models import SortedListRequest
from pydanube_admin.engine.page_tokens import Key, opened, scope_of

#: why the whole list came
OTHER_START: Final = "mark_of_another_start"  # of a broker, or an `as_of` that this broker does not remember
NOT_KEPT: Final = "mark_not_kept"  # it is too old, or the list is too long to be remembered
OTHER_BROKERS: Final = "brokers_changed"  # others answer than did then

_TOLD: Final = "told"
_SEEN: Final = "seen"
_ANY_ORDER: Final = frozenset({"sort", "changed_since"})
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)\Z")


def scope_of_marks(operation: str, request: SortedListRequest) -> bytes:
    """Return the arguments that must be the same from answer to answer: all but order and size."""
    return b"mark " + scope_of(operation, request, but=_ANY_ORDER)


def scope_of_memory(context: Context, scope: bytes) -> bytes:
    """Return the key of a remembered list. It includes the caller, whose view may be narrow."""
    return b"\0".join((scope, context.principal.encode(), repr(current_identity.get()).encode()))


def asked_mark(context: Context, request: SortedListRequest, scope: bytes) -> Key | None:
    """Return the mark that a request names, or None. Empty for a time of which nothing is remembered.

    Raises `InvalidArgument`: it is no mark of this list with these arguments, or the request also names an
    order.
    """
    given = request.changed_since
    if given is None:
        return None
    if request.sort is not None or request.top is not None:
        raise InvalidArgument(
            "changed_since cannot be combined with sort or top: leave out one of them",
            field="changed_since",
            value=shown(given[:80]),
        )
    known = context.lists.of_time(scope, given)
    if known is not None or _TIME.match(given):
        return known or ()
    try:
        return opened(given, scope)
    except PageInvalid:
        raise InvalidArgument(
            "changed_since: this list did not give out that mark, or not for these arguments. Pass mark as it was given "
            "with the other arguments unchanged, or leave changed_since out for the whole list",
            field="changed_since",
            value=shown(given[:80]),
        ) from None


def told_mark(told: Sequence[ListChanges]) -> Key:
    """Return the mark of changes that brokers reported."""
    return (_TOLD, *(part for one in told for part in (one.life, one.mark)))


def lives_in(mark: Key | None) -> Mapping[str, int]:
    """Return each broker's number in a mark, empty for another kind of mark."""
    if not mark or mark[0] != _TOLD:
        return {}
    return {str(life): int(number) for life, number in zip(mark[1::2], mark[2::2], strict=False)}


def whole_because(before: Mapping[str, int], told: Sequence[ListChanges]) -> str | None:
    """Return why the brokers' reports are not the difference from a mark, or None if they are."""
    lives = {one.life for one in told}
    if not lives & before.keys():
        return OTHER_START
    if lives != before.keys():
        return OTHER_BROKERS
    return NOT_KEPT if any(one.topics is None for one in told) else None


def seen_mark(life: str, number: int) -> Key:
    """Return the mark of a list remembered here."""
    return (_SEEN, life, number)


def number_in(mark: Key, life: str) -> int | None:
    """Return the number in a mark of a list remembered here, or None if it is of another start."""
    if len(mark) != 3 or mark[:2] != (_SEEN, life):
        return None
    return int(mark[2])
