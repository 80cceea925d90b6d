"""Namespaces in the registry.

Deleting one takes two transactions, so that no topic can slip in between looking and deleting: `deleting` first
(creations guard the namespace's revision and fail from here on), then a look into the store, then gone, or `ready`
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydanube_core.errors import InvalidArgument, NamespaceNotEmpty
from pydanube_core.names import DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, check_namespace
from pydanube_core.refusals import namespace_taken, system_is_kept
from pydanube_storage.metadata import ModRevision

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.records import NamespaceRecord, NamespaceSpec, Stage
from pydanube_broker.cluster.registry_records import RegistryRecords
from pydanube_broker.records import Change

BUILT_IN_NAMESPACES: Final = (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE)


class Namespaces:
    """Create, change and delete namespaces. Look-ups are in the index."""

    def __init__(self, records: RegistryRecords) -> None:
        self._records = records
        self._index = records.index

    async def create(
        self,
        namespace: str,
        *,
        policies: Mapping[str, Any] | None = None,
        created_at_ms: int | None = None,
    ) -> NamespaceRecord:
        """Create a namespace. Raises `InvalidName`, `AlreadyExists`.

        Args:
            created_at_ms: of a deleted namespace that is restored.
        """
        name = check_namespace(namespace)

        async def decide(change: Change) -> None:
            if self._index.find_namespace(name) is not None:
                raise namespace_taken(name)
            self._make(change, name, policies or {}, created_at_ms)

        await self._records.change(decide)
        return self._index.namespace(name)

    async def create_built_in(self) -> None:
        """Create the namespaces that always exist, except quarantined ones."""
        for name in BUILT_IN_NAMESPACES:

            async def decide(change: Change, name: str = name) -> None:
                if self._index.find_namespace(name) is None:
                    self._make(change, name, {}, None)

            if keys.namespace_key(name) not in self._records.quarantine.found:
                await self._records.change(decide)

    async def set_policies(self, namespace: str, policies: Mapping[str, Any]) -> NamespaceRecord:
        """Replace the policies. Raises `NamespaceNotFound`, and `PermissionDenied` for the namespace of the broker's own topics."""
        name = check_namespace(namespace)
        if name == SYSTEM_NAMESPACE:
            raise system_is_kept(name, field="namespace")

        async def decide(change: Change) -> None:
            former = self._index.namespace(name)
            _put(change, former, replace(former.spec, policies=dict(policies)))

        await self._records.change(decide)
        return self._index.namespace(name)

    async def delete(self, namespace: str) -> None:
        """Delete an empty namespace. Raises `NamespaceNotFound`, `NamespaceNotEmpty`, or refuses the built-in ones."""
        name = check_namespace(namespace)
        if name in BUILT_IN_NAMESPACES:
            raise InvalidArgument(f"namespace {name} always exists", field="namespace", value=name)

        async def mark(change: Change) -> None:
            former = self._index.namespace(name)
            if not self._index.is_empty(name):
                raise NamespaceNotEmpty(
                    f"namespace {name} holds topics. Delete them first", field="namespace", value=name
                )
            if former.spec.stage is not Stage.DELETING:
                _put(change, former, replace(former.spec, stage=Stage.DELETING))

        await self._records.change(mark)
        if not await self.settle(name):
            raise NamespaceNotEmpty(
                f"namespace {name} has a new topic. Delete it first", field="namespace", value=name
            )

    async def settle(self, name: str) -> bool:
        """Finish a deletion: True if the namespace is gone, False if it was not empty and is usable again.

        It is marked, so no broker creates topics in it. The index has the mark, and with it all earlier changes.
        """

        async def decide(change: Change) -> bool:
            namespace = self._index.find_namespace(name)
            if namespace is None:
                return True
            if namespace.spec.stage is not Stage.DELETING:
                return False
            if not self._index.is_empty(name):
                _put(change, namespace, replace(namespace.spec, stage=Stage.READY))
                return False
            key = keys.namespace_key(name)
            change.guard(ModRevision(key, namespace.revision))
            change.delete(key)
            return True

        return (await self._records.change(decide)).result

    def _make(
        self, change: Change, name: str, policies: Mapping[str, Any], created_at_ms: int | None
    ) -> None:
        key = keys.namespace_key(name)
        made_ms = self._records.wall_ms() if created_at_ms is None else created_at_ms
        change.absent(key)
        change.put(key, NamespaceSpec(name=name, created_at_ms=made_ms, policies=dict(policies)))


def _put(change: Change, former: NamespaceRecord, spec: NamespaceSpec) -> None:
    key = keys.namespace_key(former.name)
    change.guard(ModRevision(key, former.revision))
    change.put(key, spec)
