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
from pydanube_storage.metadata import Absent, Delete, ModRevision, Put

from pydanube_broker.cluster import keys
from pydanube_broker.cluster.records import NamespaceRecord, NamespaceSpec, Stage
from pydanube_broker.cluster.registry_writer import RegistryWriter

BUILT_IN_NAMESPACES: Final = (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE)


class NamespaceOperations(RegistryWriter):
    """Create, change and delete namespaces; look-ups are in `index`."""

    async def create_namespace(
        self,
        namespace: str,
        *,
        policies: Mapping[str, Any] | None = None,
        created_at_ms: int | None = None,
    ) -> NamespaceRecord:
        """Create a namespace. Raises `InvalidName`, `AlreadyExists`. `created_at_ms`: that of a deleted one which is restored."""
        name = check_namespace(namespace)
        return await self.again(
            self._create_namespace, name, policies or {}, must_be_new=True, created_at_ms=created_at_ms
        )

    async def set_namespace_policies(self, namespace: str, policies: Mapping[str, Any]) -> NamespaceRecord:
        """Replace the policies. Raises `NamespaceNotFound`, and `PermissionDenied` for the namespace of the broker's own topics."""
        name = check_namespace(namespace)
        if name == SYSTEM_NAMESPACE:
            raise system_is_kept(name, field="namespace")

        async def attempt() -> NamespaceRecord:
            former = self.index.namespace(name)
            await self._put_namespace(former, replace(former.spec, policies=dict(policies)))
            return self.index.namespace(name)

        return await self.again(attempt)

    async def delete_namespace(self, namespace: str) -> None:
        """Delete an empty namespace. Raises `NamespaceNotFound`, `NamespaceNotEmpty`, or refuses the built-in ones."""
        name = check_namespace(namespace)
        if name in BUILT_IN_NAMESPACES:
            raise InvalidArgument(f"namespace {name} always exists", field="namespace", value=name)

        async def mark() -> None:
            former = self.index.namespace(name)
            if not self.index.is_empty(name):
                raise NamespaceNotEmpty(
                    f"namespace {name} holds topics; delete them first", field="namespace", value=name
                )
            if former.spec.stage is not Stage.DELETING:
                await self._put_namespace(former, replace(former.spec, stage=Stage.DELETING))

        await self.again(mark)
        if not await self.again(self._settle_namespace, name):
            raise NamespaceNotEmpty(
                f"namespace {name} got a topic meanwhile; delete it first", field="namespace", value=name
            )

    async def _create_namespace(
        self,
        name: str,
        policies: Mapping[str, Any],
        *,
        must_be_new: bool = False,
        created_at_ms: int | None = None,
    ) -> NamespaceRecord:
        found = self.index.find_namespace(name)
        if found is not None and must_be_new:
            raise namespace_taken(name)
        if found is None:
            key = keys.namespace_key(name)
            made_ms = self._wall_ms() if created_at_ms is None else created_at_ms
            spec = NamespaceSpec(name=name, created_at_ms=made_ms, policies=dict(policies))
            await self.change([Put(key, spec.to_json())], [Absent(key)])
        return self.index.namespace(name)

    async def _put_namespace(self, former: NamespaceRecord, spec: NamespaceSpec) -> None:
        key = keys.namespace_key(former.name)
        await self.change([Put(key, spec.to_json())], [ModRevision(key, former.revision)])

    async def _settle_namespace(self, name: str) -> bool:
        """Finish a deletion: True if the namespace is gone, False if it was not empty and is usable again.

        It is marked, so nobody creates in it any more; the index has the mark, and with it all that came before.
        """
        namespace = self.index.find_namespace(name)
        if namespace is None:
            return True
        if namespace.spec.stage is not Stage.DELETING:
            return False
        if not self.index.is_empty(name):
            await self._put_namespace(namespace, replace(namespace.spec, stage=Stage.READY))
            return False
        key = keys.namespace_key(name)
        await self.change([Delete(key)], [ModRevision(key, namespace.revision)])
        return True
