"""The registry's index and the metadata store behind it: reading, and one guarded transaction at a time.

Whoever finds a guard broken reads the subject again (`refresh`) and decides again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import anyio
from pydanube_core.errors import ClosedResource, Retryable, SchemaNotFound, StoreUnavailable
from pydanube_core.spelling import close_names
from pydanube_storage.metadata import (
    Absent,
    Compacted,
    CorruptMetadata,
    Event,
    EventKind,
    Guard,
    GuardFailed,
    MetadataStore,
    ModRevision,
    Put,
    Revision,
    Write,
    read_all,
)

from pydanube_broker.records.set_aside import Aside
from pydanube_broker.schema import keys
from pydanube_broker.schema.records import SubjectRecord, SubjectSpec, VersionRecord, VersionSpec, stored

log = logging.getLogger("pydanube.schemas")


class SchemaIndex:
    """All subjects and versions in memory: look-ups are immediate, changes go through the store first (`registry`)."""

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
        """Replace a subject's versions by those read with its record."""
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
        """Return the record of a subject. Raises `SchemaNotFound`, with calls that help."""
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
        """Return one version, None for the latest. Raises `SchemaNotFound`."""
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


_STORE_S: Final = 10.0
_AGAIN_S: Final = 1.0  # after the store did not answer


class SchemaStore:
    def __init__(self, store: MetadataStore, aside: Aside | None = None) -> None:
        self._aside = aside or Aside()
        self.index = SchemaIndex()
        self._store = store
        self._seen = Revision(0)

    async def load(self) -> None:
        """Read all subjects and versions; call it before anything else."""
        subjects, self._seen = await read_all(self._store, keys.SUBJECTS)
        ids: dict[str, int] = {}
        for item in subjects:
            with self._aside.reading(item.key):
                subject = SubjectRecord.of(item)
                ids[subject.subject] = subject.schema_id
                self.index.put_subject(subject)
        texts, _ = await read_all(self._store, keys.DEFINITIONS)
        definitions = {keys.identity_of_key(item.key): item.value for item in texts}
        compiled, _ = await read_all(self._store, keys.DESCRIPTORS)
        descriptors = {keys.identity_of_key(item.key): item.value for item in compiled}
        versions, _ = await read_all(self._store, keys.VERSIONS)
        for item in versions:
            with self._aside.reading(item.key):
                spec = VersionSpec.from_json(item.value, key=item.key)
                identity = (spec.subject, spec.version)
                if identity not in definitions or spec.subject not in ids:
                    raise CorruptMetadata(f"metadata key {item.key} has no text, or no subject", key=item.key)
                self.index.put_version(
                    VersionRecord(
                        schema_id=ids[spec.subject],
                        spec=spec,
                        definition=definitions[identity],
                        descriptors=descriptors.get(identity),
                    )
                )

    async def follow(self, changed: Callable[[int], None]) -> None:
        """Take in the changes of others, until the store closes; `changed` is called with the schema's id."""
        while True:
            try:
                start = Revision(self._seen + 1)
                async with self._store.watch(keys.SUBJECTS, from_revision=start) as events:
                    async for event in events:
                        await self._take(event, changed)
                        self._seen = event.revision
            except Compacted:
                await self.load()
            except ClosedResource:
                return
            except Retryable as error:
                log.warning("schemas_not_followed", extra={"error": error.message})
                await anyio.sleep(_AGAIN_S)

    async def _take(self, event: Event, changed: Callable[[int], None]) -> None:
        subject = keys.subject_of_key(event.key)
        known = self.index.find_subject(subject)
        if event.kind is EventKind.PUT and (known is None or known.revision < event.revision):
            with self._aside.reading(event.key):
                await self.refresh(subject)
                changed(SubjectRecord.of(event.key_value).schema_id)

    async def know(self, subject: str) -> None:
        """Ask the store for a subject that the index does not know. Raises `StoreUnavailable`."""
        if subject and self.index.find_subject(subject) is None:
            await self.refresh(subject)

    async def add_version(
        self,
        known: SubjectRecord | None,
        spec: SubjectSpec,
        version: VersionSpec,
        definition: bytes,
        descriptors: bytes | None,
    ) -> VersionRecord | None:
        """Store a version and return it; None if another write came first, which the index then has."""
        key = keys.subject_key(spec.subject)
        guard = Absent(key) if known is None else ModRevision(key, known.revision)
        writes = [Put(key, spec.to_json()), *stored(version, definition, descriptors)]
        try:
            revision = await self.change(writes, [guard])
        except GuardFailed:
            await self.refresh(spec.subject)
            return None
        schema_id = int(revision) if known is None else known.schema_id
        record = VersionRecord(
            schema_id=schema_id, spec=version, definition=definition, descriptors=descriptors
        )
        self.index.put_version(record)
        self.index.put_subject(SubjectRecord(schema_id=schema_id, revision=revision, spec=spec))
        return record

    async def change(self, writes: Sequence[Write], guards: Sequence[Guard]) -> Revision:
        """Run one transaction. Not cancelled once begun, so that its outcome is known."""
        with anyio.move_on_after(_STORE_S, shield=True):
            return await self._store.transact(writes, guards=guards)
        raise StoreUnavailable(
            f"the metadata store has not answered for {_STORE_S:.0f} s; the change may have happened",
            outcome="unknown",
        )

    async def refresh(self, subject: str) -> None:
        """Read a subject again: its record before its versions, so that its guard is never younger than they are."""
        item = await self._store.get(keys.subject_key(subject))
        if item is None:
            return
        record = SubjectRecord.of(item)
        found: list[VersionRecord] = []
        for entry in (await read_all(self._store, keys.versions_range(subject)))[0]:
            spec = VersionSpec.from_json(entry.value, key=entry.key)
            known = self.index.find_version(record.schema_id, spec.version)
            if known is not None:
                found.append(known)
                continue
            text = await self._store.get(keys.definition_key(subject, spec.version))
            compiled = await self._store.get(keys.descriptors_key(subject, spec.version))
            if text is not None:  # else it was deleted just now
                found.append(
                    VersionRecord(
                        schema_id=record.schema_id,
                        spec=spec,
                        definition=text.value,
                        descriptors=None if compiled is None else compiled.value,
                    )
                )
        current = self.index.find_subject(subject)
        if current is None or current.revision <= record.revision:
            self.index.replace_versions(record.schema_id, found)
            self.index.put_subject(record)
