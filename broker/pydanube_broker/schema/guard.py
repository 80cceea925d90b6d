"""Checks publishes against a topic's schema: the schema named by a message, and whether its payload conforms.

| | warn | enforce |
|---|---|---|
| message without schema id, or of another subject, or of a version that is not registered | log, count | refuse |
| payload validation is on, and the payload does not conform | log, count | refuse |

Topics with policy `none`, like those without a schema, have no guard, and cost one comparison with None. (The
reference broker refuses two of these cases under `warn`. Here `warn` only warns,
docs/research/behaviours.md#18-schema-registry.)

Each payload is checked against the version that its message names. Small payloads are checked immediately. A large
batch is checked in slices between turns of the loop, a large payload in a thread, and a payload that is costly because
of its schema in another process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio
from pydanube_core.batch import BatchColumn, BatchView, ProducerPart
from pydanube_core.batch.nulls import nulls
from pydanube_core.errors import ClusterError, PayloadInvalid, SchemaMismatch

from pydanube_broker.schema.binding import Binding
from pydanube_broker.schema.formats import PayloadCheck
from pydanube_broker.schema.payload_process import check_apart
from pydanube_broker.schema.registry import SchemaRegistry
from pydanube_broker.schema.vocabulary import SchemaType, ValidationPolicy

log = logging.getLogger("pydanube.schema")

LIGHT_BYTES: Final = 4096  # payload bytes checked synchronously: ≈ 100 µs for JSON, the slowest format
SLICE_S: Final = 0.000_15  # no callback runs longer than 200 µs (docs/design.md#4-the-journal)
THREAD_BYTES: Final = 16_384  # a larger payload takes longer than a slice
# Per topic and reason, because a faulty producer may fail thousands of times per second
LOG_INTERVAL_S: Final = 10.0

Identity = tuple[int, int]


class GuardCounters:
    """Counters over all topics, shown at `/metrics`."""

    def __init__(self) -> None:
        self.validations: Counter[tuple[str, str]] = Counter()  # (topic, policy)
        self.failures: Counter[tuple[str, str]] = Counter()  # (topic, reason)


class SchemaGuard:
    """Checks publishes of one topic against its binding. Single user: the loop."""

    __slots__ = ("_counters", "_enforced", "_logged", "_registry", "_topic", "_unread", "binding")

    def __init__(
        self, topic: str, binding: Binding, registry: SchemaRegistry, counters: GuardCounters
    ) -> None:
        assert binding.validation_policy is not ValidationPolicy.NONE, "without a policy there is no guard"
        self.binding = binding
        self._topic = topic
        self._registry = registry
        self._counters = counters
        self._enforced = binding.validation_policy is ValidationPolicy.ENFORCE
        latest = registry.index.find_latest(binding.schema_id)
        # All payloads of type bytes are valid, so they are not even unpacked.
        self._unread = not binding.enable_payload_validation or (
            latest is not None and latest.spec.schema_type is SchemaType.BYTES
        )
        self._logged: dict[str, float] = {}

    # -- batches of our SDK --------------------------------------------------------------------------------------

    def check_batch(self, data: bytes | memoryview, part: ProducerPart) -> bool:
        """Check a validated batch, as far as that is fast.

        Returns:
            True if the check is complete. False if `check_payloads` must still check the payloads.

        Raises:
            SchemaMismatch, PayloadInvalid: `details["index"]` is the message's index in the batch.
        """
        self._counters.validations[self._topic, self.binding.validation_policy.value] += part.count
        table, which = _schemas(data, part)
        for row, identity in enumerate(table):
            if not self._names_the_subject(identity):
                self._mismatched(identity, index=0 if which is None else which.index(row))
        if self._unread:
            return True
        if part.raw_bytes > LIGHT_BYTES or any(self._is_costly(one, part.raw_bytes) for one in table):
            return False
        view = BatchView(data, part=part)
        payloads = view.payloads()
        exempt = nulls(view, payloads)
        for index, payload in enumerate(payloads):
            if exempt is None or not exempt[index]:
                self._check_payload(table[0 if which is None else which[index]], payload, index)
        return True

    async def check_payloads(self, data: bytes | memoryview, part: ProducerPart) -> None:
        """Check the payloads left by `check_batch` without blocking the loop. Raises `PayloadInvalid`."""
        table, which = _schemas(data, part)
        for identity in table:
            await self._prepare(identity)
        view = BatchView(data, part=part)
        payloads = await anyio.to_thread.run_sync(view.payloads)
        exempt = await anyio.to_thread.run_sync(nulls, view, payloads)
        turn_until = time.perf_counter() + SLICE_S
        for index, payload in enumerate(payloads):
            identity = table[0 if which is None else which[index]]
            if exempt is not None and exempt[index]:
                pass
            elif len(payload) > THREAD_BYTES or self._is_costly(identity, len(payload)):
                await self._check_large(identity, payload, index)
            else:
                self._check_payload(identity, payload, index)
            if time.perf_counter() > turn_until:
                await asyncio.sleep(0)
                turn_until = time.perf_counter() + SLICE_S

    # -- single messages of official clients ---------------------------------------------------------------------

    def check_message(self, schema_id: int, version: int, payload: bytes, *, null: bool = False) -> bool:
        """Check one message like `check_batch`. Return False if `check_payload` must still be called.

        Raises `SchemaMismatch`, `PayloadInvalid`.
        """
        self._counters.validations[self._topic, self.binding.validation_policy.value] += 1
        if not self._names_the_subject((schema_id, version)):
            self._mismatched((schema_id, version))
        if self._unread or null:
            return True
        if len(payload) > LIGHT_BYTES or self._is_costly((schema_id, version), len(payload)):
            return False
        self._check_payload((schema_id, version), payload, None)
        return True

    async def check_payload(self, schema_id: int, version: int, payload: bytes) -> None:
        """Check the payload left by `check_message` without blocking the loop. Raises `PayloadInvalid`."""
        await self._prepare((schema_id, version))
        await self._check_large((schema_id, version), payload, None)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _names_the_subject(self, identity: Identity) -> bool:
        schema_id, version = identity
        return schema_id == self.binding.schema_id and (
            not version or self._registry.index.find_version(schema_id, version) is not None
        )

    def _mismatched(self, identity: Identity, **details: Any) -> None:
        """Count a message that does not name the subject or a version of it. See `_failed`."""
        reason = "subject_mismatch" if identity[0] else "missing_schema_id"
        self._failed(reason, lambda: self._mismatch(*identity, **details))

    def _mismatch(self, schema_id: int, version: int, **details: Any) -> SchemaMismatch:
        topic, binding, index = self._topic, self.binding, self._registry.index
        text = f"{topic} takes messages of schema subject {binding.subject!r}"
        if not schema_id:
            text += " only, and this one names no schema: give the producer the subject (schema=)"
        elif schema_id != binding.schema_id:
            other = index.find_subject_by_id(schema_id)
            named = "an id that is not registered" if other is None else f"subject {other.subject!r}"
            text += f", this one names {named}"
        else:
            existing = [record.version for record in index.versions(schema_id)]
            text = f"subject {binding.subject!r} has no version {version}. There are {existing or 'none'}"
        of_version = schema_id == binding.schema_id
        return SchemaMismatch(
            text,
            field="schema_version" if of_version else "schema_id",
            value=version if of_version else str(schema_id),
            topic=topic,
            subject=binding.subject,
            schema_id=str(binding.schema_id),
            **details,
        )

    def _check_payload(self, identity: Identity, payload: bytes, index: int | None) -> None:
        check = self._check_for(identity)
        if check is None:
            return
        try:
            check(payload)
        except PayloadInvalid as error:
            self._payload_failed(error, index)

    def _is_costly(self, identity: Identity, payload_bytes: int) -> bool:
        """Return whether the check is too slow to be built, or to be run, in the loop."""
        found = self._version_for(identity)
        if found is None:
            return False
        return not self._registry.has_check(*found) or self._registry.check_of(*found).is_costly(
            payload_bytes
        )

    async def _check_large(self, identity: Identity, payload: bytes, index: int | None) -> None:
        check = self._check_for(identity)
        if check is None:
            return
        try:
            if check.is_costly(len(payload)):
                await check_apart(check.schema, bytes(payload))
            else:
                await anyio.to_thread.run_sync(check, payload)
        except PayloadInvalid as error:
            self._payload_failed(error, index)

    def _version_for(self, identity: Identity) -> Identity | None:
        """Return the version to check a payload against: its own or the latest. None if it is not of this subject."""
        schema_id, version = identity
        index, binding = self._registry.index, self.binding
        if schema_id not in (0, binding.schema_id):
            return None
        if not version or index.find_version(binding.schema_id, version) is None:
            latest = index.find_latest(binding.schema_id)
            return None if latest is None else latest.identity
        return binding.schema_id, version

    def _check_for(self, identity: Identity) -> PayloadCheck | None:
        found = self._version_for(identity)
        return None if found is None else self._registry.check_of(*found)

    async def _prepare(self, identity: Identity) -> None:
        """Build the check of a version in a thread, before its first use."""
        found = self._version_for(identity)
        if found is not None and not self._registry.has_check(*found):
            await self._registry.prepare_check(*found)

    def _payload_failed(self, error: PayloadInvalid, index: int | None) -> None:
        error.details |= {"topic": self._topic, "subject": self.binding.subject}
        if index is not None:
            error.details["index"] = index
        self._failed("payload_invalid", lambda: error)

    def _failed(self, reason: str, made: Callable[[], ClusterError]) -> None:
        """Count a violation, and refuse or log it, depending on the policy. An error is made only for that."""
        self._counters.failures[self._topic, reason] += 1
        if self._enforced:
            raise made()
        now = time.monotonic()
        if now >= self._logged.get(reason, 0.0):
            self._logged[reason] = now + LOG_INTERVAL_S
            log.warning(
                "schema_violated",
                extra={
                    "topic": self._topic,
                    "reason": reason,
                    "subject": self.binding.subject,
                    "detail": made().message,
                },
            )


def _schemas(data: bytes | memoryview, part: ProducerPart) -> tuple[Sequence[Identity], Sequence[int] | None]:
    """Return each (schema id, version) of a batch, and each message's index into them. None: all have the first."""
    if part.columns & BatchColumn.SCHEMAS:
        found = BatchView(data, part=part).schemas()
        assert found is not None, "the column is there"
        return found
    return ((part.schema_id, part.schema_version),), None
