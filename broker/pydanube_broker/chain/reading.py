"""Read a chain from a recorded number on, and fence it.

A fence is an ordinary piece, of the successor's term, created under the next free name. A piece that the predecessor
sends afterwards does not get its name or does not continue the chain. A predecessor may have `MOST_IN_FLIGHT` pieces
in flight, so a fence takes as many names in a row: no late piece can take a name that the successor uses.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from itertools import count
from typing import Final

from pydanube_core.errors import CorruptObject, Fenced

from pydanube_broker.chain.piece import (
    HEADER_BYTES,
    MOST_IN_FLIGHT,
    RANDOM_BYTES,
    Item,
    PieceHeader,
    Place,
    Start,
    chain_folder,
    decode_header,
    decode_piece,
    encode_piece,
    number_in_key,
    piece_key,
)
from pydanube_broker.chain.store import ChainStore

PIECES_AT_ONCE: Final = 16  # pieces in one call: up to 64 MiB
HEADERS_AT_ONCE: Final = 128  # a long chain is read in few calls


async def chain_end(store: ChainStore, cluster: str, journal: int, from_number: int) -> Place:
    """Return the end of a chain, by the headers of its pieces.

    Args:
        from_number: number of a piece that belongs to the chain, as recorded in the metadata. 1 for a new chain.

    Raises:
        CorruptObject: a piece is damaged, or the one with `from_number` is missing.
        StoreUnavailable: the store cannot be read.
    """
    place = Place(number=from_number)
    async for data in _objects(store, cluster, journal, from_number, HEADER_BYTES):
        header = decode_header(data, journal=journal, number=place.number)
        place = _behind(place, header, from_number) or place.past_stray()
    if place.number == from_number > 1:
        raise _missing(journal, from_number)
    return place


async def pieces(
    store: ChainStore, cluster: str, journal: int, from_number: int, until: int | None = None
) -> AsyncIterator[tuple[PieceHeader, list[Item]]]:
    """Yield the pieces of a chain, without strays, from `from_number` to its end or to the number `until`.

    Raises as `chain_end`.
    """
    place = Place(number=from_number)
    async for data in _objects(store, cluster, journal, from_number, None, until):
        header = decode_header(data, journal=journal, number=place.number)
        behind = _behind(place, header, from_number)
        if behind is not None:
            yield decode_piece(data, journal=journal, number=place.number)
        place = behind or place.past_stray()
    if place.number == from_number > 1 or (until is not None and place.number < until):
        raise _missing(journal, place.number)


async def fence(store: ChainStore, cluster: str, journal: int, from_number: int, term: int) -> int:
    """End the chain of a predecessor, and return the number of the fence: only pieces below it count.

    A successor that continues the chain itself calls `fenced_end`, which also returns its end.

    Raises:
        Fenced: a successor of a higher term was faster.
        CorruptObject, StoreUnavailable: as `chain_end`. Part of the fence may exist. Call again.
    """
    number, _ = await fenced_end(store, cluster, journal, from_number, term)
    return number


async def fenced_end(
    store: ChainStore, cluster: str, journal: int, from_number: int, term: int
) -> tuple[int, Place]:
    """Fence as `fence` does. Return the number of the fence, and the end of the chain behind it."""
    place = await chain_end(store, cluster, journal, from_number)
    life = secrets.randbits(64)
    first, taken = place.number, 0
    while taken < MOST_IN_FLIGHT:
        if place.term > term:
            raise Fenced(
                f"journal {journal} was taken over under term {place.term}, this broker acts under term {term}: another "
                "broker continues it"
            )
        made, data = encode_piece(
            place,
            [Start(life=life)],
            journal=journal,
            term=term,
            random=secrets.token_bytes(RANDOM_BYTES),
        )
        key = piece_key(cluster, journal, place.number)
        found = made
        if not await store.create(key, data):
            there = await store.read(key, HEADER_BYTES)
            if there is None:
                continue  # the refusal was about an object that has been deleted since
            found = decode_header(there, journal=journal, number=place.number)
        if found == made:
            taken, place = taken + 1, place.after(made)
        elif place.continued_by(found):  # the predecessor, or another successor, was faster
            place = place.after(found)
            first, taken = place.number, 0
        else:
            place, taken = place.past_stray(), taken + 1
    return first, place


def _behind(place: Place, header: PieceHeader, from_number: int) -> Place | None:
    """Return the end of the chain behind a piece, or None for a stray. The piece at `from_number` is no stray."""
    if header.number == from_number > 1 or place.continued_by(header):
        return place.after(header)
    return None


async def _objects(
    store: ChainStore,
    cluster: str,
    journal: int,
    number: int,
    most_bytes: int | None,
    until: int | None = None,
) -> AsyncIterator[bytes]:
    """Yield the objects of the names from `number` on, up to the first name without an object."""
    at_once = PIECES_AT_ONCE
    while until is None or number < until:
        at_once = at_once if until is None else min(at_once, until - number)
        keys = [piece_key(cluster, journal, number + i) for i in range(at_once)]
        for data in await store.read_many(keys, most_bytes):
            if data is None:
                return
            yield data
        number += at_once
        if most_bytes is not None:
            at_once = min(2 * at_once, HEADERS_AT_ONCE)


async def check_end(
    store: ChainStore, cluster: str, journal: int, from_number: int, *, may_be_new: bool = False
) -> None:
    """Check that a chain ends because nothing was written behind, and not because pieces were deleted.

    Its writer has at most `MOST_IN_FLIGHT` names in flight, so pieces farther behind a missing one prove that it existed.
    A missing piece with fewer pieces behind it passes as the end: it may never have been acknowledged.

    Args:
        may_be_new: the chain may have no piece yet, if it begins with number 1.

    Raises:
        CorruptObject: the chain has no piece from `from_number` on, or one in between is missing.
        StoreUnavailable: the store cannot be read.
    """
    folder = chain_folder(cluster, journal)
    while True:
        found = [number_in_key(name, folder) for name in await store.names(folder)]
        numbers = {number for number in found if number is not None}
        if may_be_new and from_number == 1 and not numbers:
            return
        missing = next(number for number in count(from_number) if number not in numbers)
        if missing > from_number and max(numbers) < missing + MOST_IN_FLIGHT:
            return
        if await store.read(piece_key(cluster, journal, missing), HEADER_BYTES) is None:
            raise _missing(journal, missing)  # a listing is not atomic, and the owner may still write


def _missing(journal: int, number: int) -> CorruptObject:
    return CorruptObject(
        f"piece {number} of the chain of journal {journal} is missing. Restore the object from a backup",
        cause="chain",
    )
