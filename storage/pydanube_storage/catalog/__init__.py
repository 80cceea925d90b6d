"""Which objects are a topic: one entry each and one head a topic in the metadata store."""

from pydanube_storage.catalog.catalog import Committed, ObjectCatalog
from pydanube_storage.catalog.errors import CatalogFenced
from pydanube_storage.catalog.records import CatalogEntry, CatalogHead, Moment, Resting, Retired

__all__ = [
    "CatalogEntry",
    "CatalogFenced",
    "CatalogHead",
    "Committed",
    "Moment",
    "ObjectCatalog",
    "Resting",
    "Retired",
]
