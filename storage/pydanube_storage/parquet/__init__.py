"""Batches as Parquet and back. Needs pyarrow and numpy (`pydanube[tier]`): only the tier's process imports this."""

from pydanube_storage.parquet.columns import FORMAT_VERSION, SCHEMA, Meta
from pydanube_storage.parquet.decode import batches_of
from pydanube_storage.parquet.encode import RowGroup
from pydanube_storage.parquet.read import ObjectReader
from pydanube_storage.parquet.write import ROW_GROUP_BYTES, ObjectWriter, WrittenObject

__all__ = [
    "FORMAT_VERSION",
    "ROW_GROUP_BYTES",
    "SCHEMA",
    "Meta",
    "ObjectReader",
    "ObjectWriter",
    "RowGroup",
    "WrittenObject",
    "batches_of",
]
