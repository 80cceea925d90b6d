"""A message that one version of a subject takes and another refuses, for whoever asks why they do not go together."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube_broker.schema.differences import Direction, directions
from pydanube_broker.schema.formats import JsonSchema, ParsedSchema
from pydanube_broker.schema.json_schema.counterexample import Counterexample, counterexample
from pydanube_broker.schema.vocabulary import CompatibilityMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The message, and which of the two refuses it. `version`: the old one's."""

    sample: Counterexample
    version: int
    by_new: bool  # the new schema refuses what the old one wrote; else the other way round


def refused_message(
    compared: tuple[tuple[int, int], ParsedSchema, object], new: ParsedSchema, mode: CompatibilityMode
) -> Refused | None:
    """A message that shows why they do not go together; None for other formats than JSON Schema, and where none is found.

    `compared`: schema id and version of the old one, and what it is.
    """
    (_, version), old, _ = compared
    if not isinstance(old, JsonSchema) or not isinstance(new, JsonSchema):
        return None
    for direction in directions(mode):
        by_new = direction is Direction.BACKWARD
        writer, reader = (old, new) if by_new else (new, old)
        sample = counterexample(writer.document, writer.validator, reader.validator)
        if sample is not None:
            return Refused(sample=sample, version=version, by_new=by_new)
    return None
