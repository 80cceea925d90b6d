"""The batch: one format from producer to Parquet. See `layout` for its bytes.

`validate` and `select` need numpy and are imported by the broker only.
"""

from pydanube_core.batch.codec import parse_codec
from pydanube_core.batch.encode import PackedColumn, broker_part, encode_batch
from pydanube_core.batch.layout import (
    BATCH_TARGET_BYTES,
    BROKER_PART_BYTES,
    FRAME_LIMIT_BYTES,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_COPY_BYTES,
    PRODUCER_PART_BYTES,
    BatchColumn,
    Codec,
)
from pydanube_core.batch.lone import LoneBatches
from pydanube_core.batch.view import BatchView, BrokerPart, ProducerPart, read_broker_part, read_producer_part

__all__ = [
    "BATCH_TARGET_BYTES",
    "BROKER_PART_BYTES",
    "FRAME_LIMIT_BYTES",
    "MAX_BATCH_BYTES",
    "MAX_BATCH_MESSAGES",
    "MAX_COPY_BYTES",
    "PRODUCER_PART_BYTES",
    "BatchColumn",
    "BatchView",
    "BrokerPart",
    "Codec",
    "LoneBatches",
    "PackedColumn",
    "ProducerPart",
    "broker_part",
    "encode_batch",
    "parse_codec",
    "read_broker_part",
    "read_producer_part",
]
