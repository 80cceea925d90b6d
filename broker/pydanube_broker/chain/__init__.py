"""The chain of a journal: its records as numbered pieces in an object store (docs/data-formats.md#piece-of-a-chain).

    store = ChainObjects(open_store(options))         a ChainStore: create-only names, read, list, delete
    number = await fence(store, cluster, journal, from_number, term)
        End the predecessor's chain below `number`: its pieces from there on do not count. Raises `Fenced` if a
        successor of a higher term was faster. Calling again, also under a higher term, moves the end behind the new
        fence and returns the new fence's number. The pieces of a fence are never deleted.
    async for header, items in pieces(store, cluster, journal, from_number, until=number)
        The pieces of the chain without strays: `Start`, `Group`, `Head`, `Drop`, `Safe`.
    found = await replay(store, cluster, journal, from_number, until=number, folder=path)
        Rebuild the journal's folder. `Journal.recover` or `journal.recovery.recover` reads it as any other.

    writer = ChainWriter(store, source, owner, cluster=…, journal=…, term=…, place=place, …); await writer.run()
        Send the records that a journal writes, from the end of the chain that `fenced_end` returned.

`journal` is the journal's id, a random number of 64 bits made with an empty folder (text in JSON: decimal, as all ids).
`from_number` and `term` come from the record `/journals/<broker>`. Both are 1 for a new chain.
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
from pydanube_broker.chain.reading import chain_end, check_end, fence, fenced_end, pieces
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
    "check_end",
    "fence",
    "fenced_end",
    "piece_key",
    "pieces",
    "replay",
]
