"""Parts shared by the workers of the tier, which write, merge, maintain and delete objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydanube_storage.catalog import ObjectCatalog

from pydanube_broker.tier.child import TierChild
from pydanube_broker.tier.disk_room import DiskRoom
from pydanube_broker.tier.owned_store import OwnedStore
from pydanube_broker.topics.hub import Hub


@dataclass(frozen=True, slots=True, kw_only=True)
class TierParts:
    hub: Hub
    catalog: ObjectCatalog
    child: TierChild
    folders: dict[int, str]  # topic id → folder of its objects
    hold: OwnedStore
    room: DiskRoom
    cluster: str  # keys begin with its name
    object_format: Callable[[], int]  # the highest that each broker of the cluster reads
