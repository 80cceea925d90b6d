"""The schema registry of the in-memory cluster: subjects and their versions, as `client.schemas` asks for them.

It compares nothing: every definition that is new becomes a version. Whether it is compatible is for a broker to say.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydanube_core.errors import InvalidArgument, NotImplementedYet, SchemaNotFound
from pydanube_core.generated import danube_schema_pb2 as pb
from pydanube_core.services import SCHEMA_REGISTRY

_TYPES: Final = ("bytes", "string", "number", "avro", "json_schema", "protobuf")


class MemoryRegistry:
    """Subjects by name and by number."""

    def __init__(self) -> None:
        self._subjects: dict[str, list[pb.GetSchemaResponse]] = {}
        self._methods: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
            SCHEMA_REGISTRY["RegisterSchema"].path: (pb.RegisterSchemaRequest, self._register),
            SCHEMA_REGISTRY["GetSchema"].path: (pb.GetSchemaRequest, self._get),
            SCHEMA_REGISTRY["GetLatestSchema"].path: (pb.GetLatestSchemaRequest, self._latest),
        }

    def call(self, path: str, request: bytes) -> bytes:
        """Answer an encoded call."""
        if path not in self._methods:
            raise NotImplementedYet(f"the in-memory cluster does not serve {path}", method=path)
        kind, method = self._methods[path]
        answer: bytes = method(kind.FromString(request)).SerializeToString()
        return answer

    def find(self, subject: str, version: int) -> tuple[int, int]:
        """Number and version of a subject's version; 0: the latest. Raises `SchemaNotFound`."""
        found = self._version(self._subjects.get(subject, []), subject, version)
        return found.schema_id, found.version

    def _register(self, request: pb.RegisterSchemaRequest) -> pb.RegisterSchemaResponse:
        if request.schema_type not in _TYPES:
            raise InvalidArgument(
                f"schema_type {request.schema_type!r}: use {', '.join(_TYPES)}",
                field="schema_type", value=request.schema_type,
            )  # fmt: skip
        versions = self._subjects.setdefault(request.subject, [])
        known = [one for one in versions if one.schema_definition == request.schema_definition]
        if not known:
            versions.append(
                pb.GetSchemaResponse(
                    schema_id=versions[0].schema_id if versions else len(self._subjects),
                    version=len(versions) + 1,
                    subject=request.subject,
                    schema_type=request.schema_type,
                    schema_definition=request.schema_definition,
                    description=request.description,
                    created_at=int(time.time()),
                    created_by=request.created_by,
                    tags=request.tags,
                    fingerprint="sha256:" + hashlib.sha256(request.schema_definition).hexdigest(),
                    compatibility_mode="none",
                )
            )
        made = known[0] if known else versions[-1]
        return pb.RegisterSchemaResponse(
            schema_id=made.schema_id,
            version=made.version,
            is_new_version=not known,
            fingerprint=made.fingerprint,
        )

    def _get(self, request: pb.GetSchemaRequest) -> pb.GetSchemaResponse:
        versions = next(
            (found for found in self._subjects.values() if found[0].schema_id == request.schema_id), []
        )
        return self._version(versions, f"number {request.schema_id}", request.version)

    def _latest(self, request: pb.GetLatestSchemaRequest) -> pb.GetSchemaResponse:
        return self._version(self._subjects.get(request.subject, []), request.subject, 0)

    @staticmethod
    def _version(versions: list[pb.GetSchemaResponse], subject: str, version: int) -> pb.GetSchemaResponse:
        if not versions or version > len(versions):
            what = f"there is no schema {subject}" if not versions else f"{subject} has no version {version}"
            raise SchemaNotFound(what, field="schema", value=subject)
        return versions[version - 1] if version else versions[-1]
