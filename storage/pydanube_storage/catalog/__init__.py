"""The objects that make up a topic: one entry for each and one head for the topic, in the metadata store."""

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
