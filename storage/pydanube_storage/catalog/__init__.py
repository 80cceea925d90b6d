"""Which objects are a topic: one entry each and one head a topic in the metadata store."""

from pydanube_storage.catalog.catalog import ObjectCatalog
from pydanube_storage.catalog.errors import CatalogFenced
from pydanube_storage.catalog.records import CatalogEntry, CatalogHead, Moment, Resting

__all__ = [
    "CatalogEntry",
    "CatalogFenced",
    "CatalogHead",
    "Moment",
    "ObjectCatalog",
    "Resting",
]
