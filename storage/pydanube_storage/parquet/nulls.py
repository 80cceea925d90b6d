"""Null payloads in the rows of objects: stored as empty payloads beside an attribute (`pydanube_core.batch.nulls`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydanube_core.batch.nulls import NULL


def with_nulls(payload: Any, attributes: Any) -> Any:
    """Return the payload column with null where a message has a null payload.

    The cost is one comparison of the names of all attributes.

    Args:
        payload: `binary`.
        attributes: a map array of as many rows.
    """
    offsets = attributes.offsets.to_numpy()
    names = attributes.keys.slice(offsets[0], offsets[-1] - offsets[0])
    if not len(names):
        return payload
    found = np.flatnonzero(pc.equal(names, NULL).to_numpy(zero_copy_only=False))
    if not len(found):
        return payload
    marked = np.zeros(len(payload), bool)
    marked[np.searchsorted(offsets - offsets[0], found, "right") - 1] = True
    empty = pc.equal(pc.binary_length(payload), 0)
    return pc.if_else(pc.and_(pa.array(marked), empty), pa.scalar(None, payload.type), payload)
