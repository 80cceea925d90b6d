"""The registry of schemas: every change is one guarded transaction over the tables of `index`.

Each change of a subject guards the subject's record, so concurrent registrations are serialized. The second one's
guard fails and it is decided again: either its text is now a version already, or it is compared with the new latest
version and gets the next number.

Parsing, comparing and compiling run in threads, because they would block the loop too long for a large schema.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import anyio
from pydanube_core.errors import Conflict, SchemaInvalid, SchemaMismatch
from pydanube_core.recent import RecentDict
from pydanube_core.schema_facts import RegistrationFacts
from pydanube_core.schema_formats.protobuf.protoc import compile_proto
from pydanube_storage.metadata import MAX_VALUE_BYTES, GuardFailed, MetadataStore, Write

from pydanube_broker.cluster.id_blocks import IdBlocks, IdBlocksRecord
from pydanube_broker.cluster.keys import ID_BLOCKS
from pydanube_broker.records import Change, Outcome, Quarantine, Records
from pydanube_broker.records.change import Decide
from pydanube_broker.schema import keys
from pydanube_broker.schema.compatibility import Compatibility, refused_message
from pydanube_broker.schema.differences import Difference, merged
from pydanube_broker.schema.formats import (
    ParsedSchema,
    PayloadCheck,
    admit_schema,
    differences_between,
    parse_schema,
    payload_check,
)
from pydanube_broker.schema.index import SchemaIndex
from pydanube_broker.schema.records import (
    SubjectRecord,
    SubjectSpec,
    VersionRecord,
    VersionSpec,
    check_subject,
    check_texts,
    removed,
    stored,
)
from pydanube_broker.schema.turns import Turns
from pydanube_broker.schema.vocabulary import CompatibilityMode, JsonProfile, SchemaType

T = TypeVar("T")
_ATTEMPTS: Final = 32  # each failed attempt means that another registration succeeded
# Maximum concurrent parses and comparisons: each competes with the loop for the interpreter lock
_THREADS: Final = 2
_COMPILERS: Final = 2  # maximum concurrent compilers, so that a client in a loop does not exhaust the machine
_PARSED: Final = 256  # versions whose parsed form and payload check are cached

assert MAX_VALUE_BYTES > 200_000, "a definition of the largest size must fit"


class SchemaRegistry:
    """Subjects and their versions.

    Args:
        wall_ms: milliseconds since 1970.
        pending: entered while a thread works for the registry (`WorkerThreads.pending`).
        charge: counts the processor seconds of such a thread, in the task that waited for it.
        quarantine: takes records that cannot be read.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        wall_ms: Callable[[], int],
        pending: Callable[[], AbstractContextManager[None]] = nullcontext,
        charge: Callable[[float], None] = lambda seconds: None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.index = SchemaIndex()
        self.records = Records(store, self.index.tables, quarantine=quarantine)
        self._store = store
        self._ids = IdBlocks(store)
        self._wall_ms = wall_ms
        self._pending = pending
        self._charge = charge
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._compilers = anyio.CapacityLimiter(_COMPILERS)
        self.turns = Turns()
        self._parsed: RecentDict[tuple[int, int], ParsedSchema] = RecentDict(_PARSED)
        self._checks: RecentDict[tuple[int, int], PayloadCheck] = RecentDict(_PARSED)

    async def load(self) -> None:
        """Read all subjects and versions. Call it before anything else."""
        await self.records.load()
        self.index.quarantine_incomplete(self.records.quarantine)
        blocks = await self._store.get(ID_BLOCKS)
        with self.records.quarantine.reading(ID_BLOCKS):
            IdBlocksRecord.of(blocks)

    async def know(self, subject: str) -> None:
        """Load a subject that another broker may just have registered. Raises `StoreUnavailable`."""
        if subject and self.index.find_subject(subject) is None:
            await self.records.refresh(keys.subject_key(subject))
            await self._complete(subject)

    async def _complete(self, subject: str) -> None:
        """Load the newest version of a subject. Older builds write it after the subject."""
        known = self.index.find_subject(subject)
        if known is not None and self.index.find_version(known.schema_id, known.spec.last_version) is None:
            parts = (keys.version_key, keys.definition_key, keys.descriptors_key)
            await self.records.refresh(*(part(subject, known.spec.last_version) for part in parts))

    # -- reading -------------------------------------------------------------------------------------------------

    def latest(self, subject: str) -> VersionRecord:
        """Return the newest version of a subject. Raises `SchemaNotFound`."""
        return self.index.version(self.index.subject(subject).schema_id, None)

    def check_of(self, schema_id: int, version: int) -> PayloadCheck:
        """Return the check of payloads against a version, built at its first use. Raises `SchemaNotFound`."""
        identity = (schema_id, version)
        check = self._checks.get(identity)
        if check is None:
            check = payload_check(self.parsed(self.index.version(schema_id, version)))
            self._checks[identity] = check
        return check

    def has_check(self, schema_id: int, version: int) -> bool:
        """Return whether the check of a schema version is built already, so that `check_of` is fast."""
        return (schema_id, version) in self._checks

    async def prepare_check(self, schema_id: int, version: int) -> None:
        """Build the check of a version in a thread, because a large schema would block the loop too long."""
        record = self.index.version(schema_id, version)

        def work() -> tuple[ParsedSchema, PayloadCheck]:
            parsed = self._parsed.get(record.identity) or parse_schema(
                record.spec.schema_type, record.definition, descriptors=record.descriptors
            )
            return parsed, payload_check(parsed)

        parsed, check = await self._in_thread(work)
        self._parsed[record.identity] = parsed
        self._checks[record.identity] = check

    def parsed(self, record: VersionRecord) -> ParsedSchema:
        """Return the parsed form of a registered version."""
        parsed = self._parsed.get(record.identity)
        if parsed is None:
            parsed = parse_schema(record.spec.schema_type, record.definition, descriptors=record.descriptors)
            self._parsed[record.identity] = parsed
        return parsed

    # -- registering ---------------------------------------------------------------------------------------------

    async def register(
        self,
        subject: str,
        kind: SchemaType,
        definition: bytes,
        *,
        description: str = "",
        created_by: str = "",
        tags: Sequence[str] = (),
        profile: JsonProfile = JsonProfile.STRICT,
    ) -> RegistrationFacts:
        """Register a schema under a subject and return its version. An equal registered schema keeps its version.

        Args:
            profile: profile of a new subject. An existing one keeps its own.

        Raises:
            InvalidArgument, SchemaInvalid: the name, the texts or the definition is invalid.
            SchemaIncompatible: `details["differences"]` has all differences. Nothing was stored.
            Conflict: concurrent changes by other brokers won every attempt.
            Overloaded: a thousand other changes of the subject are waiting.
        """
        check_subject(subject)
        labels = tuple(tags)
        check_texts(description, created_by, labels)
        parsed, descriptors = await self._parse(subject, kind, definition)
        told = VersionSpec(
            subject=subject,
            version=1,
            schema_type=kind,
            fingerprint=parsed.fingerprint,
            description=description,
            created_by=created_by,
            created_at_ms=self._wall_ms(),
            tags=labels,
        )
        async with self.turns.of(subject):
            return await self._registered(told, parsed, definition, descriptors, profile)

    async def _registered(
        self,
        told: VersionSpec,
        parsed: ParsedSchema,
        definition: bytes,
        descriptors: bytes | None,
        profile: JsonProfile,
    ) -> RegistrationFacts:
        """Register while holding the subject's turn. `told` is the version with a provisional number and time."""
        subject, key = told.subject, keys.subject_key(told.subject)
        new_id = 0

        async def decide(change: Change) -> RegistrationFacts:
            nonlocal new_id
            await self._complete(subject)
            known = self.index.find_subject(subject)
            change.unchanged(self.index.subject_table, key)
            if known is not None:
                existing = self._same_content(known, parsed)
                if existing is not None:
                    return _facts(known.schema_id, existing.spec, is_new=False)
                verdict = await self._compare(known, parsed, known.spec.compatibility_mode)
                if not verdict.is_compatible:
                    raise verdict.refusal(subject)
            elif not new_id:
                new_id = await self._ids.next()
            now = self._wall_ms()
            spec = _next_spec(known, subject, told.created_by, now, profile)
            version = replace(told, version=spec.last_version, created_at_ms=now)
            change.write(*stored(version, definition, descriptors))
            change.put(key, spec if known is not None else replace(spec, identity=new_id))
            return _facts(new_id if known is None else known.schema_id, version, is_new=True)

        facts = (await self._change(subject, decide)).result
        if facts.is_new_version:
            self._parsed[facts.schema_id, facts.version] = parsed
        return facts

    def _same_content(self, known: SubjectRecord, parsed: ParsedSchema) -> VersionRecord | None:
        return next(
            (
                record
                for record in self.index.versions(known.schema_id)
                if record.spec.fingerprint == parsed.fingerprint and record.spec.schema_type is parsed.type
            ),
            None,
        )

    async def _parse(
        self, subject: str, kind: SchemaType, definition: bytes
    ) -> tuple[ParsedSchema, bytes | None]:
        """Return the parsed definition, and for a Protobuf schema its compiled descriptors."""
        descriptors: bytes | None = None
        if kind is SchemaType.PROTOBUF:
            descriptors = self._compiled_before(subject, definition) or await self._compile(definition)
        return await self._in_thread(partial(_admitted, kind, definition, descriptors)), descriptors

    async def _compile(self, definition: bytes) -> bytes:
        with self._pending():
            descriptors = await anyio.to_thread.run_sync(compile_proto, definition, limiter=self._compilers)
        if len(descriptors) > MAX_VALUE_BYTES:
            raise SchemaInvalid(
                f"the compiled schema has {len(descriptors)} bytes, at most {MAX_VALUE_BYTES} are kept: split it",
                field="schema_definition",
                value=len(descriptors),
                limit=MAX_VALUE_BYTES,
            )
        return descriptors

    def _compiled_before(self, subject: str, definition: bytes) -> bytes | None:
        """Return the descriptors of an equal registered schema, because applications register again at every start."""
        known = self.index.find_subject(subject)
        fingerprint = "sha256:" + hashlib.sha256(definition).hexdigest()
        for record in () if known is None else self.index.versions(known.schema_id):
            if record.spec.fingerprint == fingerprint and record.descriptors is not None:
                return record.descriptors
        return None

    # -- compatibility -------------------------------------------------------------------------------------------

    async def check(
        self,
        subject: str,
        kind: SchemaType,
        definition: bytes,
        *,
        mode: CompatibilityMode | None = None,
        transitive: bool | None = None,
        profile: JsonProfile | None = None,
    ) -> Compatibility:
        """Compare a definition with a subject's versions, without storing anything.

        Args:
            mode, transitive, profile: replace the subject's settings.

        Raises:
            SchemaNotFound: the subject does not exist.
            SchemaInvalid: the definition is invalid.
        """
        known = self.index.subject(subject)
        parsed, _ = await self._parse(subject, kind, definition)
        return await self._compare(
            known, parsed, mode or known.spec.compatibility_mode, transitive=transitive, profile=profile
        )

    async def _compare(
        self,
        known: SubjectRecord,
        parsed: ParsedSchema,
        mode: CompatibilityMode,
        *,
        transitive: bool | None = None,
        profile: JsonProfile | None = None,
    ) -> Compatibility:
        all_versions = known.spec.transitive if transitive is None else transitive
        rules = profile or known.spec.json_profile
        records = self.index.versions(known.schema_id)[::-1]
        records = records if all_versions else records[:1]
        if mode is CompatibilityMode.NONE:
            records = []
        olds = [(record.identity, self._parsed.get(record.identity), record) for record in records]

        def work() -> list[tuple[tuple[int, int], ParsedSchema, tuple[Difference, ...]]]:
            found = []
            for identity, known_form, record in olds:
                old = known_form or parse_schema(
                    record.spec.schema_type, record.definition, descriptors=record.descriptors
                )
                found.append((identity, old, differences_between(old, parsed, mode, profile=rules)))
            return found

        compared = await self._in_thread(work) if olds else []
        for identity, old, _ in compared:
            self._parsed[identity] = old
        worst = next((each for each in compared if each[2]), None)  # the newest incompatible version
        return Compatibility(
            mode=mode,
            transitive=all_versions,
            example=await self._in_thread(lambda: refused_message(worst, parsed, mode)) if worst else None,
            differences=merged(differences for _, _, differences in compared),
            compared_with=tuple(version for (_, version), _, _ in compared),
        )

    async def set_compatibility(
        self,
        subject: str,
        mode: CompatibilityMode,
        *,
        transitive: bool | None = None,
        profile: JsonProfile | None = None,
    ) -> SubjectRecord:
        """Change the comparison of new versions. None leaves a setting unchanged. Raises `SchemaNotFound`."""

        def decide(known: SubjectRecord) -> tuple[SubjectSpec, Sequence[Write]] | None:
            spec = known.spec
            wanted = replace(
                spec,
                compatibility_mode=mode,
                transitive=spec.transitive if transitive is None else transitive,
                json_profile=profile or spec.json_profile,
            )
            return None if wanted == spec else (wanted, ())

        async with self.turns.of(subject):
            return await self._changed(subject, decide)

    # -- deleting ------------------------------------------------------------------------------------------------

    async def delete_version(self, subject: str, version: int) -> VersionRecord:
        """Delete one version. Its number is not reused. Raises `SchemaNotFound`.

        Messages of that version stay, but their schema can no longer be looked up.
        """
        doomed: list[VersionRecord] = []

        def decide(known: SubjectRecord) -> tuple[SubjectSpec, Sequence[Write]]:
            doomed[:] = [self.index.version(known.schema_id, version)]
            return known.spec, removed(doomed[0].spec)

        async with self.turns.of(subject):
            await self._changed(subject, decide)
            self._parsed.pop(doomed[0].identity, None)
            self._checks.pop(doomed[0].identity, None)
            return doomed[0]

    async def restore_version(
        self, spec: VersionSpec, definition: bytes, descriptors: bytes | None
    ) -> VersionRecord:
        """Restore a deleted version. An existing one is left unchanged. Raises `SchemaNotFound`."""

        def decide(known: SubjectRecord) -> tuple[SubjectSpec, Sequence[Write]] | None:
            present = self.index.find_version(known.schema_id, spec.version)
            return None if present is not None else (known.spec, stored(spec, definition, descriptors))

        known = await self._changed(spec.subject, decide)
        return self.index.version(known.schema_id, spec.version)

    async def mirror(
        self, spec: SubjectSpec, schema_id: int, versions: Sequence[tuple[VersionSpec, bytes, bytes | None]]
    ) -> None:
        """Take a subject of another cluster, with its id and its versions as they are. Idempotent.

        Raises:
            SchemaMismatch: the name or the id has another content here, or a version is not as its record describes it.
                Nothing has changed.
            InvalidArgument, SchemaInvalid: the name or a definition is invalid here.
        """
        check_subject(spec.subject)
        await self.know(spec.subject)
        key = keys.subject_key(spec.subject)
        for version, definition, descriptors in versions:
            if self.index.find_version(schema_id, version.version) is None:
                parsed = await self._in_thread(
                    partial(_admitted, version.schema_type, definition, descriptors)
                )
                if parsed.fingerprint != version.fingerprint:
                    raise _collides(
                        spec.subject, f"its version {version.version} has another fingerprint there"
                    )

        async def decide(change: Change) -> None:
            change.unchanged(self.index.subject_table, key)
            known = self.index.find_subject(spec.subject)
            holder = self.index.find_subject_by_id(schema_id)
            if holder is not None and holder.subject != spec.subject:
                raise _collides(
                    spec.subject, f"its id {schema_id} is that of the subject {holder.subject!r} here"
                )
            if known is not None and known.schema_id != schema_id:
                raise _collides(spec.subject, f"it has the id {known.schema_id} here, and {schema_id} there")
            missing = []
            for version, definition, descriptors in versions:
                present = self.index.find_version(schema_id, version.version)
                if present is None:
                    missing.append((version, definition, descriptors))
                elif (present.spec.fingerprint, present.spec.schema_type) != (
                    version.fingerprint,
                    version.schema_type,
                ):
                    raise _collides(spec.subject, f"its version {version.version} has another content here")
            wanted = replace(
                spec,
                last_version=max(spec.last_version, 0 if known is None else known.spec.last_version),
                identity=schema_id,
            )
            if missing or known is None or known.spec != wanted:
                for each in missing:
                    change.write(*stored(*each))
                change.put(key, wanted)

        async with self.turns.of(spec.subject):
            await self._change(spec.subject, decide)

    # -- the store -----------------------------------------------------------------------------------------------

    async def _changed(
        self,
        subject: str,
        decide: Callable[[SubjectRecord], tuple[SubjectSpec, Sequence[Write]] | None],
    ) -> SubjectRecord:
        """Change a subject's record, together with further writes, in one guarded transaction.

        Args:
            decide: returns the new record and further writes, or None to change nothing, not even the time of the last
                change. Called again if another change came first.
        """
        key = keys.subject_key(subject)

        async def attempt(change: Change) -> None:
            known = self.index.subject(subject)
            change.unchanged(self.index.subject_table, key)
            decided = decide(known)
            if decided is not None:
                change.write(*decided[1])
                change.put(key, replace(decided[0], updated_at_ms=self._wall_ms()))

        await self._change(subject, attempt)
        return self.index.subject(subject)

    async def _change(self, subject: str, decide: Decide[T]) -> Outcome[T]:
        try:
            return await self.records.change(decide, attempts=_ATTEMPTS)
        except GuardFailed as error:
            raise Conflict(
                f"subject {subject!r} is being changed by others all the time. Try again",
                field="subject",
                value=subject,
                retry_after_ms=200,
            ) from error

    async def _in_thread(self, work: Callable[[], T]) -> T:
        spent_s: list[float] = []

        def timed() -> T:
            began = time.thread_time()
            try:
                return work()
            finally:
                spent_s.append(time.thread_time() - began)

        with self._pending():
            try:
                return await anyio.to_thread.run_sync(timed, limiter=self._threads)
            finally:
                self._charge(sum(spent_s))


def _admitted(kind: SchemaType, definition: bytes, descriptors: bytes | None) -> ParsedSchema:
    parsed = parse_schema(kind, definition, descriptors=descriptors)
    admit_schema(parsed)
    return parsed


def _collides(subject: str, why: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"the subject {subject!r} cannot be mirrored: {why}. Delete the one here, leave its topics out of the link, or give "
        "the link a prefix for names that differ (--rename)",
        field="subject",
        value=subject,
    )


def _facts(schema_id: int, spec: VersionSpec, *, is_new: bool) -> RegistrationFacts:
    return RegistrationFacts(
        subject=spec.subject,
        schema_id=schema_id,
        version=spec.version,
        is_new_version=is_new,
        fingerprint=spec.fingerprint,
    )


def _next_spec(
    known: SubjectRecord | None, subject: str, created_by: str, now_ms: int, profile: JsonProfile
) -> SubjectSpec:
    """Return the subject's record with one more version."""
    if known is not None:
        return replace(known.spec, last_version=known.spec.last_version + 1, updated_at_ms=now_ms)
    return SubjectSpec(
        subject=subject,
        compatibility_mode=CompatibilityMode.BACKWARD,
        transitive=False,
        json_profile=profile,
        last_version=1,
        created_at_ms=now_ms,
        created_by=created_by,
        updated_at_ms=now_ms,
    )
