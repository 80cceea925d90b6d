"""All subjects and versions in memory: look-ups are immediate, changes go through the store first (`registry`)."""

from __future__ import annotations

from pydanube_core.errors import SchemaNotFound
from pydanube_core.spelling import close_names

from pydanube_broker.schema.records import SubjectRecord, VersionRecord


class SchemaIndex:
    def __init__(self) -> None:
        self._subjects: dict[str, SubjectRecord] = {}
        self._names: dict[int, str] = {}
        self._versions: dict[int, dict[int, VersionRecord]] = {}

    # -- feeding: what is older than what is known is ignored ----------------------------------------------------

    def put_subject(self, record: SubjectRecord) -> None:
        known = self._subjects.get(record.subject)
        if known is None or record.revision > known.revision:
            self._subjects[record.subject] = record
            self._names[record.schema_id] = record.subject

    def put_version(self, record: VersionRecord) -> None:
        self._versions.setdefault(record.schema_id, {})[record.version] = record

    def replace_versions(self, schema_id: int, records: list[VersionRecord]) -> None:
        """Replace the versions of a subject by those that were read with its record."""
        self._versions[schema_id] = {record.version: record for record in records}

    def remove_version(self, schema_id: int, version: int) -> None:
        self._versions.get(schema_id, {}).pop(version, None)

    # -- looking up ----------------------------------------------------------------------------------------------

    def subjects(self) -> list[SubjectRecord]:
        """Return the subjects, by name."""
        return [self._subjects[name] for name in sorted(self._subjects)]

    def find_subject(self, subject: str) -> SubjectRecord | None:
        return self._subjects.get(subject)

    def subject(self, subject: str) -> SubjectRecord:
        """Raises `SchemaNotFound`, with the calls that would help."""
        found = self._subjects.get(subject)
        if found is not None:
            return found
        close = close_names(subject, self._subjects)
        hint = (
            f"; did you mean {' or '.join(map(repr, close))}?"
            if close
            else "; register a schema for it first"
        )
        shown = subject[:200].encode("utf-8", "replace").decode()
        raise _suggesting_the_list(
            SchemaNotFound(
                f"subject {shown!r} does not exist{hint}", field="subject", value=shown, did_you_mean=close
            )
        )

    def subject_by_id(self, schema_id: int) -> SubjectRecord:
        """Raises `SchemaNotFound`."""
        name = self._names.get(schema_id)
        if name is None:
            raise _suggesting_the_list(
                SchemaNotFound(f"no schema has the id {schema_id}", field="schema_id", value=str(schema_id))
            )
        return self._subjects[name]

    def find_subject_by_id(self, schema_id: int) -> SubjectRecord | None:
        name = self._names.get(schema_id)
        return None if name is None else self._subjects[name]

    def versions(self, schema_id: int) -> list[VersionRecord]:
        """Return the versions of a subject, ascending."""
        found = self._versions.get(schema_id, {})
        return [found[number] for number in sorted(found)]

    def find_version(self, schema_id: int, version: int) -> VersionRecord | None:
        return self._versions.get(schema_id, {}).get(version)

    def find_latest(self, schema_id: int) -> VersionRecord | None:
        found = self._versions.get(schema_id)
        return found[max(found)] if found else None

    def version(self, schema_id: int, version: int | None) -> VersionRecord:
        """One version, None for the latest. Raises `SchemaNotFound`."""
        subject = self.subject_by_id(schema_id)
        found = self.find_latest(schema_id) if version is None else self.find_version(schema_id, version)
        if found is None:
            existing = [record.version for record in self.versions(schema_id)]
            what = "has no version" if version is None else f"has no version {version}"
            there = f"there are {existing}" if existing else "register a schema for it"
            raise SchemaNotFound(
                f"subject {subject.subject!r} {what}; {there}",
                field="version",
                value=version,
                subject=subject.subject,
                existing=existing,
            )
        return found


def _suggesting_the_list(error: SchemaNotFound) -> SchemaNotFound:
    return error.suggest(
        "schemas.list",
        tool="list_subjects",
        command="danube schemas list",
        why="shows the subjects there are",
    )
