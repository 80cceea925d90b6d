"""Batches as Parquet and back. Needs pyarrow and numpy (`pydanube[tier]`): only the tier's process imports this."""

from pydanube_storage.parquet.columns import Meta
from pydanube_storage.parquet.decode import batches_of
from pydanube_storage.parquet.read import ObjectReader
from pydanube_storage.parquet.write import ObjectWriter, WrittenObject

__all__ = [
    "Meta",
    "ObjectReader",
    "ObjectWriter",
    "WrittenObject",
    "batches_of",
]
