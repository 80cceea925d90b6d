"""The verdict over a schema that was held against versions of its subject."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube_core.errors import SchemaIncompatible

from pydanube_broker.schema.differences import Difference
from pydanube_broker.schema.refused_messages import Refused
from pydanube_broker.schema.vocabulary import CompatibilityMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatibility:
    """`compared_with`: versions, newest first; empty where there was nothing to compare."""

    mode: CompatibilityMode
    transitive: bool
    differences: tuple[Difference, ...]
    compared_with: tuple[int, ...]
    example: Refused | None = None  # of a JSON Schema: what one version takes and the other refuses

    @property
    def is_compatible(self) -> bool:
        return not self.differences

    def refusal(self, subject: str) -> SchemaIncompatible:
        """The error of a registration that is refused for its differences."""
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
