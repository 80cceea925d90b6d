"""Roles and bindings of a link's source that hold on its mirrors here, for a link that mirrors them.

A mirrored role or binding has the link's name before its own, as `eu:billing`. `links.create` refuses a name with which
this cluster has some. A binding holds here on the topics whose names fit the link's patterns, wherever it holds at the source.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.links import LinkRecord
from pydanube_core.security.permissions import BUILT_IN, Binding, Role, Scope
from pydanube_core.security.records import (
    BINDINGS,
    ROLES,
    binding_key,
    decode_binding,
    decode_role,
    encode_binding,
    encode_role,
    role_key,
)
from pydanube_core.topic_pattern import TopicPattern
from pydanube_storage.metadata import Delete, MetadataStore, Put, Write

from pydanube_broker.admin_state import ADMIN_PREFIX, SECURITY_VERSION, admin_table, version_table
from pydanube_broker.records import Quarantine, Records

MOST: Final = 1000  # mirrored roles and bindings of a link, together
MOST_CHARS: Final = 128  # of a name, as the operations on roles and bindings take it
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.@:/-]{{,{MOST_CHARS - 1}}}")
_AT_ONCE: Final = 100  # writes of a transaction: etcd takes 128
_BUILT_IN: Final = frozenset(role.name for role in BUILT_IN)


@dataclass(frozen=True, slots=True)
class SourceGrants:
    """The roles and bindings of a source. `refused`: why it does not show them."""

    roles: Sequence[Role] = ()
    bindings: Sequence[Binding] = ()
    refused: str = ""


class GrantTables:
    """The roles and bindings of this cluster. Single user: the loop."""

    def __init__(self, store: MetadataStore, quarantine: Quarantine) -> None:
        self.roles = admin_table(ROLES, decode_role)
        self.bindings = admin_table(BINDINGS, decode_binding)
        self._version = version_table()
        self.records = Records(store, [self.roles, self.bindings, self._version], quarantine=quarantine)

    @property
    def version(self) -> str | None:
        """Another value after each change. None before they are loaded."""
        return (self._version.get(SECURITY_VERSION) or b"0").decode() if self.records.revision else None

    async def mirror(self, link: LinkRecord, source: SourceGrants) -> None:
        """Write the link's roles and bindings as the source has them now, and delete those that it has no longer.

        Raises `InvalidArgument`: they are more than `MOST`. Errors of the store.
        """
        grants = list(mirrored(link, source))
        if len(grants) > MOST:
            raise InvalidArgument(
                f"the source has {len(grants)} roles and bindings for the topics of the link {link.name}: at most {MOST} are "
                "mirrored",
                field="roles",
                value=len(grants),
            )
        prefix = f"{link.name}:"
        wanted = dict(map(_record, grants))
        present = dict(
            _record(each) for each in (*self.roles, *self.bindings) if _name(each).startswith(prefix)
        )
        writes: list[Write] = [
            Put(ADMIN_PREFIX + key, value) for key, value in wanted.items() if present.get(key) != value
        ]
        writes += [Delete(ADMIN_PREFIX + key) for key in present if key not in wanted]
        for start in range(0, len(writes), _AT_ONCE):
            # A new version with each change: brokers read all grants again when they see it
            version = Put(SECURITY_VERSION, secrets.token_hex(8).encode())
            await self.records.transact([*writes[start : start + _AT_ONCE], version])


def mirrored(link: LinkRecord, source: SourceGrants) -> Iterator[Role | Binding]:
    """Yield the roles and bindings that hold on the link's mirrors. Raises `InvalidArgument`: a name becomes too long."""
    used: set[str] = set()

    def named(name: str, pattern: str = "") -> str:
        made = f"{link.name}:{pattern}{name}"
        if not _NAME.fullmatch(made):
            raise InvalidArgument(
                f"{made!r:.200} is no name here: give it letters, digits and ._@:/- at the source, and a shorter name if it has "
                f"more than {MOST_CHARS} characters",
                field="roles",
                value=name[:MOST_CHARS],
            )
        return made

    for binding in source.bindings:
        for number, resource in _resources(link, binding):
            yield Binding(
                id=named(binding.id, f"{number}:" if len(link.topics) > 1 else ""),
                principal=binding.principal,
                roles=tuple(each if each in _BUILT_IN else named(each) for each in binding.roles),
                scope=Scope.TOPIC,
                resource=resource,
            )
            used.update(binding.roles)
    for role in source.roles:
        if role.name in used and role.name not in _BUILT_IN:
            yield Role(name=named(role.name), permissions=role.permissions)


def _name(grant: Role | Binding) -> str:
    return grant.name if isinstance(grant, Role) else grant.id


def _record(grant: Role | Binding) -> tuple[str, bytes]:
    if isinstance(grant, Role):
        return role_key(grant.name), encode_role(grant)
    return binding_key(grant.id), encode_binding(grant)


def _resources(link: LinkRecord, binding: Binding) -> Iterator[tuple[int, str]]:
    """Yield the mirrors on which a binding of the source holds: for each pattern of the link, the narrower of the two.

    With the number of the pattern.
    """
    for number, text in enumerate(link.topics, start=1):
        pattern = TopicPattern.parse(text)
        begin = f"/{pattern.namespace}/"
        topics = begin + _literal(pattern.glob)
        match binding.scope:
            case Scope.CLUSTER:
                holds = topics
            case Scope.NAMESPACE:
                if not _within(pattern.namespace, binding.resource.lstrip("/")):
                    continue
                holds = topics
            case Scope.TOPIC:
                if _within(topics, binding.resource):
                    holds = topics
                elif _within(binding.resource, topics):
                    holds = binding.resource
                else:
                    continue
        yield number, begin + link.rename + holds.removeprefix(begin)


def _literal(glob: str) -> str:
    """Return the glob up to its first wildcard, with a star for the rest."""
    end = min((glob.index(each) for each in "*?[" if each in glob), default=len(glob))
    return glob[:end] + ("*" if end < len(glob) else "")


def _within(inner: str, outer: str) -> bool:
    """Return whether all names of one pattern are of another one. A final star is any rest."""
    if not outer.endswith("*"):
        return inner == outer
    return inner.removesuffix("*").startswith(outer[:-1])
