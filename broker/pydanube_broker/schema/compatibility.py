"""The result of comparing a schema with versions of its subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydanube_core.errors import SchemaIncompatible

from pydanube_broker.schema.differences import Difference, Direction, directions
from pydanube_broker.schema.formats import JsonSchema, ParsedSchema
from pydanube_broker.schema.vocabulary import CompatibilityMode

if TYPE_CHECKING:
    from pydanube_broker.schema.json_schema.counterexample import Counterexample


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A message that one of two schemas refuses. `version` is that of the old schema."""

    sample: Counterexample
    version: int
    by_new: bool  # whether the new schema refuses a message of the old one, or the reverse


def refused_message(
    compared: tuple[tuple[int, int], ParsedSchema, object], new: ParsedSchema, mode: CompatibilityMode
) -> Refused | None:
    """Return a message that one schema accepts and the other refuses. None if none is found.

    Other formats than JSON Schema have none. `compared`: schema id and version of the old schema, and its parsed form.
    """
    (_, version), old, _ = compared
    if not isinstance(old, JsonSchema) or not isinstance(new, JsonSchema):
        return None
    # Imported here, as in `formats`: only brokers with such schemas need the library
    from pydanube_broker.schema.json_schema.counterexample import counterexample

    for direction in directions(mode):
        by_new = direction is Direction.BACKWARD
        writer, reader = (old, new) if by_new else (new, old)
        sample = counterexample(writer.document, writer.validator, reader.validator)
        if sample is not None:
            return Refused(sample=sample, version=version, by_new=by_new)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """The result of a comparison. `compared_with`: versions, newest first, empty if there were none."""

    mode: CompatibilityMode
    transitive: bool
    differences: tuple[Difference, ...]
    compared_with: tuple[int, ...]
    example: Refused | None = None  # only for JSON Schema

    @property
    def is_compatible(self) -> bool:
        return not self.differences

    def refusal(self, subject: str) -> SchemaIncompatible:
        """Return the error for a registration refused because of differences."""
        differences = [difference.to_dict() for difference in self.differences]
        first = self.differences[0].sentence()
        more = f", and {len(differences) - 1} more" if len(differences) > 1 else ""
        compared = ", ".join(map(str, self.compared_with))
        error = SchemaIncompatible(
            f"the schema is not {self.mode.value} compatible with version {compared} of {subject!r}: {first}{more}. "
            "Change the schema, or the subject's compatibility mode",
            field="schema_definition",
            value=None,
            subject=subject,
            compatibility_mode=self.mode.value,
            transitive=self.transitive,
            compared_with=list(self.compared_with),
            differences=differences,
        )
        return error.suggest(
            "schemas.get",
            tool="get_schema",
            command=f"danube schemas get {subject}",
            arguments={"subject": subject},
            why="shows the version it was compared with",
        )
