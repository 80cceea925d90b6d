"""The identity of a cluster's prefix on etcd."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from pydanube_core.errors import FormatTooNew
from pydanube_core.known_fields import known_fields

IDENTITY: Final = "/cluster/identity"
_SUPPORTED: Final = 2  # the highest format of metadata that this build reads
# Builds of format 1 refuse a prefix whose identity has `released`, and put this into their sentence
_TOO_OLD: Final = (
    "(none: the metadata have format {}, which this build cannot read: start the newer build. No broker)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The value of `/cluster/identity`.

    Attributes:
        recovery: the last time that the cluster went on with an older etcd, a random id.
        released: the broker that goes on alone since, with all topics.
        metadata_format: the lowest that a build has to read (`format_gate`).
    """

    cluster_id: str
    recovery: str = ""
    released: str = ""
    metadata_format: int = 1

    @classmethod
    def of(cls, value: bytes) -> Identity:
        """Parse the value. Raises `FormatTooNew`: this build must not use the metadata."""
        found: dict[str, Any] = json.loads(value)
        level = found.get("metadata_format", 1)
        if level > _SUPPORTED:
            raise FormatTooNew(
                f"the metadata have format {level} (key {IDENTITY}), this build reads up to {_SUPPORTED}: "
                "start the newer build",
                key=IDENTITY,
                value=level,
                limit=_SUPPORTED,
            )
        if level > 1:
            found["released"] = found.get("released_to", "")
        return cls(**known_fields(cls, found))

    def to_json(self) -> bytes:
        """Return the value, with fields that are empty left out: a build without a field reads the record until it is used."""
        said = {name: value for name, value in asdict(self).items() if value}
        if self.metadata_format == 1:
            del said["metadata_format"]
        else:
            said |= {"released_to": self.released, "released": _TOO_OLD.format(self.metadata_format)}
        return json.dumps(said).encode()
