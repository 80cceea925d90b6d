"""The chain of a journal: what has left it, as numbered pieces in an object store (docs/data-formats.md#piece-of-a-chain).

    store = ChainObjects(open_store(options))         a ChainStore: create-only names, read, list, delete
    number = await fence(store, cluster, journal, from_number, term)
        The predecessor's chain ends below `number`: no piece of it counts from there on. Raises `Fenced` where a
        successor of a higher term was faster. Calling again, also under a higher term, moves the end behind the new fence
        and returns that one's number. The pieces of a fence stay for ever.
    async for header, items in pieces(store, cluster, journal, from_number, until=number)
        The pieces of the chain without strays: `Start`, `Group`, `Head`, `Drop`, `Safe`.
    found = await replay(store, cluster, journal, from_number, until=number, folder=path)
        Rebuild the journal's folder; `Journal.recover` or `journal.recovery.recover` reads it as any other.

    writer = ChainWriter(store, source, owner, cluster=…, journal=…, term=…, place=place, …); await writer.run()
        Send what a journal writes, from where `fenced_end` says that the chain ends.

`journal` is the journal's id, a random number of 64 bits made with an empty folder (text in JSON: decimal, as all ids).
`from_number` and `term` are those of the record `/journals/<broker>`; of a new chain they are 1 and 1.
"""

from pydanube_broker.chain.piece import (
    Drop,
    Group,
    Head,
    Item,
    PieceHeader,
    Place,
    Safe,
    Start,
    chain_folder,
    piece_key,
)
from pydanube_broker.chain.reading import chain_end, fence, fenced_end, pieces
from pydanube_broker.chain.replay import Replayed, replay
from pydanube_broker.chain.source import ChainSource, Stretch
from pydanube_broker.chain.store import ChainObjects, ChainStore
from pydanube_broker.chain.writer import ChainOwner, ChainStatistics, ChainWriter

__all__ = [
    "ChainObjects",
    "ChainOwner",
    "ChainSource",
    "ChainStatistics",
    "ChainStore",
    "ChainWriter",
    "Drop",
    "Group",
    "Head",
    "Item",
    "PieceHeader",
    "Place",
    "Replayed",
    "Safe",
    "Start",
    "Stretch",
    "chain_end",
    "chain_folder",
    "fence",
    "fenced_end",
    "piece_key",
    "pieces",
    "replay",
]
