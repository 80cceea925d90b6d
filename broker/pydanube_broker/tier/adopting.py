"""Add objects that are newer than the catalog to it instead of deleting them, as after an older backup was restored.

`chain` selects the objects of the topic. Listed objects that exist stay. A missing one is replaced by an unlisted
object that covers it, such as a merge made after the backup. Behind the last listed object follow unlisted ones that
each begin where the one before ends. Each is opened and hashed before it counts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from pydanube_storage.catalog import ObjectCatalog
from pydanube_storage.objects import ObjectName

from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.flushing import entry_of

log = logging.getLogger("pydanube.tier")


def chain(listed: Sequence[tuple[int, int, str]], there: Collection[str], tiered: int) -> list[ObjectName]:
    """Return the objects to add, in order of their offsets. Pure.

    Args:
        listed: (start, end, name) of the catalog's objects, ascending, without gaps.
        there: names of all objects in the topic's folder.
        tiered: the end of the catalog's last object.
    """
    known = {name for _, _, name in listed}
    found = [name for each in there if each not in known and (name := ObjectName.parse(each)) is not None]
    starts: dict[int, ObjectName] = {}
    for name in sorted(found, key=lambda name: (name.start, name.end, name.generation, name.epoch)):
        starts[name.start] = name  # of several the one that covers most
    ends = {end for _, end, _ in listed}
    taken: list[ObjectName] = []
    covered = 0
    for start, _end, text in listed:
        if start < covered or text in there:
            continue
        name_here = starts.get(start)
        if name_here is not None and (name_here.end in ends or name_here.end > tiered):
            taken.append(name_here)
            covered = name_here.end
    at = max(tiered, covered)
    while True:
        following = starts.get(at)
        if following is None:
            # one that was merged with the catalog's last ones, which are there as well
            over = [
                starts[start]
                for start, _, _ in listed
                if start >= covered and start in starts and starts[start].end > at
            ]
            following = max(over, key=lambda name: name.end, default=None)
            if following is None:
                return taken
        taken.append(following)
        at = covered = following.end


async def adopt(topic_id: int, topic: str, epoch: int, catalog: ObjectCatalog, child: TierChild) -> int:
    """Add newer objects to the catalog. Return how many. This broker owns the topic by now, in `epoch`."""
    held = await catalog.head(topic_id)
    if held is None:
        return 0
    folder = held.head.folder
    said, _ = await child.call("list", {"folder": folder})
    there = {fact["key"].rpartition("/")[2] for fact in said["objects"]}
    listed = [(each.start, each.end, each.name) async for each in catalog.entries(topic_id)]
    adopted = []
    for name in chain(listed, there, held.head.tiered_offset):
        facts, _ = await child.call("facts", {"key": f"{folder}/{name}"})
        await catalog.adopt(topic_id, entry_of(name, facts, epoch=name.epoch), epoch=epoch)
        adopted.append(str(name))
    if adopted:
        log.warning(
            "tier_objects_adopted", extra={"topic": topic, "objects": len(adopted), "first": adopted[0]}
        )
    return len(adopted)
