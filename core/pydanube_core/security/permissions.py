"""Permissions: roles, bindings, and the one function that decides. Pure.

A permission is `area:verb`: those of the operations (`topics:read`) and those of data (`data:produce`). A role holds
permissions, also by the names of the original (`Produce`, `ManageTopic`) and with a star (`topics:*`, `*:read`, `*`). A
binding gives a principal roles on a scope: the cluster, a namespace, or a topic, by name or by the beginning of names
(`orders-*`). Nothing is allowed that no binding allows.

`Grants` is built when roles or bindings change; `decide` then looks at the principal's own bindings only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pydanube_core.names import TopicName

MOST_DECIDED: Final = 65_536  # decisions that are cached
LOOK_UP: Final = "data:look_up"
PRODUCE: Final = "data:produce"
CONSUME: Final = "data:consume"
MIRROR: Final = "data:mirror"  # to copy a topic to another cluster, with its cursors and sessions
FENCE: Final = "data:fence"  # to end a topic's producers and consumers, because another cluster takes it over
ACT_FOR: Final = "security:act_for"  # to make a call for another principal
TAKE_BACK: Final = "changes:change"  # to undo changes of another principal
AUDIT_READ: Final = "audit:read"  # also for everything in the namespace system

#: the original's nine, as ours. It has one for each kind of thing, and does not separate reading from managing
ORIGINAL: Final[Mapping[str, frozenset[str]]] = {
    "Lookup": frozenset({LOOK_UP}),
    "Produce": frozenset({LOOK_UP, PRODUCE}),
    "Consume": frozenset({LOOK_UP, CONSUME}),
    "Replicate": frozenset({LOOK_UP, MIRROR}),
    "ManageNamespace": frozenset({"namespaces:*"}),
    "ManageTopic": frozenset(
        {
            "topics:*", "subscriptions:*", "consumers:*", "producers:*", "messages:*", "dead_letters:*",
            "plans:*", "changes:*", "tasks:*", "operations:*", LOOK_UP,
        }
    ),
    "ManageSchema": frozenset({"schemas:*"}),
    "ManageBroker": frozenset({"brokers:*", "cluster:*", "objects:*", "journal:*", "reports:*"}),
    "ManageCluster": frozenset({"*"}),
}  # fmt: skip


class Scope(StrEnum):
    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class Principal:
    """A name and its type: equal names of different types are different principals."""

    name: str
    type: str = "user"

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


@dataclass(frozen=True, slots=True)
class Resource:
    """The object of an action: a topic, a namespace or, with neither, the cluster."""

    namespace: str = ""
    topic: str = ""  # its name within the namespace

    @classmethod
    def of(cls, name: TopicName) -> Resource:
        base = name.base  # a partition has no grants of its own
        return cls(base.namespace, base.name)

    def __str__(self) -> str:
        if self.topic:
            return f"/{self.namespace}/{self.topic}"
        return self.namespace or "the cluster"


CLUSTER: Final = Resource()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    name: str
    permissions: tuple[str, ...]
    system: bool = False  # built in: neither changed nor deleted

    def expanded(self) -> frozenset[str]:
        """Return the permissions in our own words."""
        return frozenset(each for name in self.permissions for each in ORIGINAL.get(name, (name,)))


BUILT_IN: Final = (
    Role(name="admin", permissions=("*",), system=True),
    Role(
        name="viewer",
        permissions=("*:read", "journal:describe", "objects:list", "objects:verify", "reports:run", LOOK_UP),
        system=True,
    ),
    Role(name="producer", permissions=("Produce",), system=True),
    Role(name="consumer", permissions=("Consume",), system=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Roles of a principal on a scope. `resource`: empty, a namespace or `/namespace/topic`. A final star is any rest."""

    id: str
    principal: Principal
    roles: tuple[str, ...]
    scope: Scope
    resource: str = ""

    def covers(self, resource: Resource) -> bool:
        match self.scope:
            case Scope.CLUSTER:
                return True
            case Scope.NAMESPACE:
                return bool(resource.namespace) and _covers(self.resource.lstrip("/"), resource.namespace)
            case Scope.TOPIC:
                return bool(resource.topic) and _covers(self.resource, str(resource))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether it is allowed, and by which `binding` and `role`, which are empty if nothing allows it."""

    allowed: bool
    binding: str = ""
    role: str = ""


REFUSED: Final = Decision(allowed=False)


@dataclass(frozen=True, slots=True)
class Grants:
    """All roles and bindings at one moment."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    by_principal: Mapping[Principal, tuple[Binding, ...]] = field(default_factory=dict)
    _expanded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _decided: dict[tuple[Principal, str, Resource], Decision] = field(default_factory=dict, compare=False)
    #: roles of a principal by scope and resource of its bindings, as `held` looks for them
    _indexed: dict[Principal, dict[tuple[Scope, str], set[str]]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, roles: Iterable[Role], bindings: Iterable[Binding]) -> Grants:
        known = {role.name: role for role in (*roles, *BUILT_IN)}
        grouped: dict[Principal, list[Binding]] = {}
        for binding in bindings:
            grouped.setdefault(binding.principal, []).append(binding)
        return cls(
            known,
            {principal: tuple(sorted(found, key=_by_scope)) for principal, found in grouped.items()},
            {name: role.expanded() for name, role in known.items()},
        )

    def decide(self, principal: Principal, permission: str, resource: Resource = CLUSTER) -> Decision:
        """Decide whether the principal has the permission on the resource. Cost: its own bindings, once."""
        asked = (principal, permission, resource)
        known = self._decided.get(asked)
        if known is None:
            if len(self._decided) >= MOST_DECIDED:
                self._decided.clear()
            known = self._decided[asked] = self._decide(principal, permission, resource)
        return known

    def _decide(self, principal: Principal, permission: str, resource: Resource) -> Decision:
        wanted = _ways_to_hold(permission)
        for binding in self.by_principal.get(principal, ()):
            if not binding.covers(resource):
                continue
            for role in binding.roles:
                held = self._expanded.get(role)
                if held is not None and not held.isdisjoint(wanted):
                    return Decision(allowed=True, binding=binding.id, role=role)
        return REFUSED

    def decide_part(self, principal: Principal, permission: str, whole: Resource) -> bool:
        """Return whether the principal has the permission on anything within the cluster, a namespace, or a topic."""
        wanted = _ways_to_hold(permission)
        return any(
            _touches(binding, whole)
            and any(not self._expanded.get(role, frozenset()).isdisjoint(wanted) for role in binding.roles)
            for binding in self.by_principal.get(principal, ())
        )

    def permissions(self, principal: Principal) -> frozenset[str]:
        """Return all permissions of the principal on anything, with the stars of its roles."""
        mine = self.by_principal.get(principal, ())
        return frozenset().union(*(self._expanded.get(role, ()) for each in mine for role in each.roles))

    def permissions_of(self, role: str) -> Collection[str]:
        """Return the permissions of a role, which may have stars. Empty if it does not exist."""
        return self._expanded.get(role, ())

    def held(self, principal: Principal, role: str, scope: Scope, resource: str) -> bool:
        """Return whether the principal has everything that a role gives on a scope. Only then may it grant it."""
        index = self._indexed.get(principal)
        if index is None:
            index = self._indexed[principal] = _indexed(self.by_principal.get(principal, ()))
        roles = {name for place in _places(scope, resource) for name in index.get(place, ())}
        have = frozenset(permission for name in roles for permission in self._expanded.get(name, ()))
        return all(not have.isdisjoint(_ways_to_hold(each)) for each in self._expanded.get(role, ()))

    def admins(self) -> frozenset[Principal]:
        """Return the principals that may do everything everywhere."""
        return frozenset(
            principal
            for principal, found in self.by_principal.items()
            for binding in found
            if binding.scope is Scope.CLUSTER
            and any("*" in self._expanded.get(role, ()) for role in binding.roles)
        )


def holds(permissions: Collection[str], permission: str) -> bool:
    """Return whether one of the permissions, which may have stars, covers another."""
    return any(each in permissions for each in _ways_to_hold(permission))


def _ways_to_hold(permission: str) -> tuple[str, ...]:
    area, _, verb = permission.partition(":")
    return permission, f"{area}:*", f"*:{verb}", "*"


def _covers(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _touches(binding: Binding, whole: Resource) -> bool:
    """Return whether a binding covers anything within a resource."""
    if not whole.namespace or binding.covers(whole):
        return True
    if whole.topic or binding.scope is not Scope.TOPIC:
        return False
    below, pattern = f"/{whole.namespace}/", binding.resource
    return pattern.startswith(below) or (pattern.endswith("*") and below.startswith(pattern[:-1]))


def _by_scope(binding: Binding) -> int:
    return list(Scope).index(binding.scope)


def _indexed(bindings: Iterable[Binding]) -> dict[tuple[Scope, str], set[str]]:
    found: dict[tuple[Scope, str], set[str]] = {}
    for binding in bindings:
        name = binding.resource.lstrip("/") if binding.scope is Scope.NAMESPACE else binding.resource
        place = (binding.scope, "" if binding.scope is Scope.CLUSTER else name)
        found.setdefault(place, set()).update(binding.roles)
    return found


def _places(scope: Scope, resource: str) -> Iterator[tuple[Scope, str]]:
    """Yield the scope and resource of every binding that covers everything in a scope and resource. O(its characters)."""
    yield Scope.CLUSTER, ""
    if scope is Scope.CLUSTER:
        return
    bare = resource.lstrip("/")
    # A beginning of topic names that does not end with its namespace is in no namespace
    if scope is Scope.NAMESPACE or "/" in bare:
        namespace = bare.partition("/")[0] if scope is Scope.TOPIC else bare
        yield from ((Scope.NAMESPACE, pattern) for pattern in _patterns_around(namespace))
    if scope is Scope.TOPIC:
        yield from ((Scope.TOPIC, pattern) for pattern in _patterns_around(resource))


def _patterns_around(inner: str) -> Iterator[str]:
    """Yield the name itself and each beginning of it with a star."""
    yield inner
    begin = inner.removesuffix("*")
    yield from (f"{begin[:length]}*" for length in range(len(begin) + 1))
