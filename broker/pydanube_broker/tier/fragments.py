"""To be removed with the next release: read the fragments in which brokers of the release before hand topics over.

Such an owner writes its topic in parts into the object store, names them in the assignment, and seals it. This broker
reads the parts once the leader has assigned the topic here. No fragment is written any more, so that a topic cannot be
moved from this release to the one before. Objects below `<cluster>/fragments/` may be deleted by hand when no broker of
the release before is left.

Goes with it: `HandOverPart` and the fields `parts`, `copied`, `offers` of `MoveRecord`, `Assignment.offered`, the branch
for `move.parts` in `participant`, `copied_to` in `topics.rebuilt_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydanube_core.errors import CorruptObject

from pydanube_broker.tier.topic_reports_work import Answer, Call

# Importing the whole cluster package for one name doubled the start time of the tier's process
if TYPE_CHECKING:
    from pydanube_storage.objects import ObjectStore

    from pydanube_broker.cluster.move_record import HandOverPart
    from pydanube_broker.copying.arrival import Arrival


class FragmentWork:
    """The call of the broker: `name(arguments, blob) → (result, blob)`. Blocking."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def calls(self) -> Mapping[str, Callable[[dict[str, Any], bytes], Answer]]:
        return {"fragment_read": self.read}

    def read(self, arguments: dict[str, Any], blob: bytes) -> Answer:
        """Read the bytes [`start`, `end`) of `key`."""
        return {}, self._store.read(arguments["key"], arguments["start"], arguments["end"])


async def copy_parts(call: Call, parts: Sequence[HandOverPart], arrival: Arrival) -> None:
    """Copy the parts into the journal.

    Raises `ObjectMissing`, `CorruptObject`, `StoreUnavailable`, and the errors of the journal: some may be copied.
    """
    from pydanube_broker.copying.piece import decode_piece

    for part in parts:
        _, data = await call(
            "fragment_read", {"key": part.key, "start": part.start, "end": part.end, "awaited": True}, b""
        )
        if sha256(data).hexdigest() != part.digest:
            raise CorruptObject(f"{part.key} is not the fragment that the metadata names", cause="fragment")
        await arrival.take(decode_piece(bytes(data)))
