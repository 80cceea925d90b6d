"""All subjects and versions of the schema registry, in memory, as tables of the metadata store."""

from __future__ import annotations

from collections import defaultdict

from pydanube_core.errors import SchemaNotFound
from pydanube_core.spelling import close_names
from pydanube_storage.metadata import CorruptMetadata, KeyValue

from pydanube_broker.records import Quarantine, Table
from pydanube_broker.schema import keys
from pydanube_broker.schema.records import SubjectRecord, VersionRecord, VersionSpec
from pydanube_broker.schema.vocabulary import SchemaType


class SchemaIndex:
    """Look-ups are synchronous. A version exists once all its keys do: spec, text, and descriptors for Protobuf.

    A change writes the subject last, so a reader of the changed subject also has its versions.
    """

    def __init__(self) -> None:
        self.subject_table = Table(keys.SUBJECTS, SubjectRecord.of, changed=self._put_subject)
        self.specs = Table(keys.VERSIONS, _spec_of, changed=self._put_part)
        self.definitions = Table(keys.DEFINITIONS, _value_of, changed=self._put_part)
        self.descriptors = Table(keys.DESCRIPTORS, _value_of, changed=self._put_part)
        self.tables = (self.subject_table, self.specs, self.definitions, self.descriptors)
        self._subjects: dict[str, SubjectRecord] = {}
        self._names: dict[int, str] = {}
        self._versions: defaultdict[int, dict[int, VersionRecord]] = defaultdict(dict)
        self._numbers: defaultdict[str, set[int]] = defaultdict(set)  # versions with at least one key

    # -- feeding -------------------------------------------------------------------------------------------------

    def _put_subject(self, key: str, before: SubjectRecord | None, after: SubjectRecord | None) -> None:
        if before is not None:
            del self._subjects[before.subject], self._names[before.schema_id]
        if after is not None:
            self._subjects[after.subject] = after
            self._names[after.schema_id] = after.subject
        if before is None or after is None or before.schema_id != after.schema_id:
            if before is not None:
                self._versions.pop(before.schema_id, None)
            for number in self._numbers[keys.subject_of_key(key)]:
                self._join(keys.subject_of_key(key), number)

    def _put_part(self, key: str, before: object, after: object) -> None:
        subject, number = keys.identity_of_key(key)
        self._numbers[subject].add(number)
        self._join(subject, number)

    def _join(self, subject: str, number: int) -> None:
        """Build a version from its parts, or remove it if a part is missing."""
        known = self._subjects.get(subject)
        if known is None:
            return
        spec = self.specs.get(keys.version_key(subject, number))
        definition = self.definitions.get(keys.definition_key(subject, number))
        descriptors = self.descriptors.get(keys.descriptors_key(subject, number))
        lacks_descriptors = (
            descriptors is None and spec is not None and spec.schema_type is SchemaType.PROTOBUF
        )
        if spec is None or definition is None or lacks_descriptors:
            self._versions[known.schema_id].pop(number, None)
            return
        self._versions[known.schema_id][number] = VersionRecord(
            schema_id=known.schema_id, spec=spec, definition=definition, descriptors=descriptors
        )

    def quarantine_incomplete(self, quarantine: Quarantine) -> None:
        """Quarantine versions without a text or a subject."""
        for key, spec in self.specs.rows.items():
            subject = self._subjects.get(spec.subject)
            if subject is None or self.find_version(subject.schema_id, spec.version) is None:
                with quarantine.reading(key):
                    raise CorruptMetadata(f"metadata key {key} has no text, or no subject", key=key)

    # -- looking up ----------------------------------------------------------------------------------------------

    def subject_names(self) -> list[str]:
        return sorted(self._subjects)

    def subjects(self) -> list[SubjectRecord]:
        """Return the subjects, by name."""
        return [self._subjects[name] for name in self.subject_names()]

    def find_subject(self, subject: str) -> SubjectRecord | None:
        return self._subjects.get(subject)

    def subject(self, subject: str) -> SubjectRecord:
        """Return the record of a subject. Raises `SchemaNotFound`, with suggested calls."""
        found = self._subjects.get(subject)
        if found is not None:
            return found
        close = close_names(subject, self._subjects)
        hint = (
            f"; did you mean {' or '.join(map(repr, close))}?"
            if close
            else ". Register a schema for it first"
        )
        shown = subject[:200].encode("utf-8", "replace").decode()
        raise _suggesting_the_list(
            SchemaNotFound(
                f"subject {shown!r} does not exist{hint}", field="subject", value=shown, did_you_mean=close
            )
        )

    def subject_by_id(self, schema_id: int) -> SubjectRecord:
        """Return the subject that has the schema id. Raises `SchemaNotFound`."""
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
        """Return a version, the latest for None. Raises `SchemaNotFound`."""
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


def _spec_of(item: KeyValue) -> VersionSpec:
    return VersionSpec.from_json(item.value, key=item.key)


def _value_of(item: KeyValue) -> bytes:
    return item.value
