"""Object stores for the cold tier. `open_store` returns the adapter for a URL."""

from pydanube_storage.objects.local import LocalStore
from pydanube_storage.objects.names import ObjectName, topic_folder
from pydanube_storage.objects.opening import CLOUDS, StoreOptions, check_url, open_store
from pydanube_storage.objects.owner import OwnerMark, make_mark, newest_mark, store_identity
from pydanube_storage.objects.protocol import ObjectFact, ObjectStore

__all__ = [
    "CLOUDS",
    "LocalStore",
    "ObjectFact",
    "ObjectName",
    "ObjectStore",
    "OwnerMark",
    "StoreOptions",
    "check_url",
    "make_mark",
    "newest_mark",
    "open_store",
    "store_identity",
    "topic_folder",
]
