"""The permissions that a call needs, on everything that it touches, checked as soon as the call is parsed.

All code that carries out a call checks its arguments first, and so calls this module: for the call itself,
for the one inside a plan, for the read inside `operations.read`, for the change that an undo reverts.

If authorization is on, a call is made on behalf of the credential's principal or of another that it may act
for (`acting_for`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, Protocol

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.connectors import check_definition, registers_schemas, topics_of
from pydanube_core.errors import InvalidArgument, InvalidName, PermissionDenied
from pydanube_core.names import SYSTEM_NAMESPACE, TopicName, check_namespace
from pydanube_core.security.identity import Identity, current_identity, relayed_by
from pydanube_core.security.permissions import (
    ACT_FOR,
    AUDIT_READ,
    CLUSTER,
    CONSUME,
    PRODUCE,
    Principal,
    Resource,
    holds,
)
from pydanube_core.topic_pattern import TopicPattern

from pydanube_admin.engine.operation import APPLY, READ_ANY, Call, Operation, known

MOST_CHARS: Final = 256
_SERVICE: Final = "service_account"
_WILD: Final = frozenset("*?[")


@contextmanager
def acting_for(port: ClusterPort | None, claimed: str) -> Iterator[None]:
    """Context in which a call counts as the named principal's. `check_acting` decides whether it may.

    Args:
        claimed: the named principal (`--as`, `Danube-Principal`, `service_account:NAME`), or empty.
    """
    identity = current_identity.get()
    if port is None or port.locks is None or identity is None or identity.method == "none":
        yield
        return
    before = current_identity.set(_acting(identity, claimed))
    try:
        yield
    finally:
        current_identity.reset(before)


def calling() -> Identity | None:
    """Return the identity of the caller of the call under way, for whomever it acts."""
    identity = current_identity.get()
    return identity if identity is None or identity.actor is None else identity.actor


def check_acting(port: ClusterPort) -> None:
    """Raise `PermissionDenied` if the caller names another principal and may not act for others."""
    identity = current_identity.get()
    if port.locks is not None and identity is not None and identity.actor is not None:
        port.locks.check(identity.actor, ACT_FOR, CLUSTER)


def _acting(identity: Identity, claimed: str) -> Identity:
    kind, _, name = claimed.partition(":")
    named = Principal(name, _SERVICE) if kind == _SERVICE and name else Principal(claimed[:MOST_CHARS])
    if not claimed or named == identity.principal or claimed == str(identity.principal):
        return identity
    return replace(identity, principal=named, everything=False, actor=identity)


#: every caller may read its own identity, the operations, and the schemas of topics that it sees
FREE: Final = frozenset(
    {
        "security.whoami",
        "operations.find",
        "docs.search",
        "schemas.list",
        "schemas.get",
        "schemas.get_by_id",
        "schemas.versions",
        "schemas.get_compatibility",
    }
)
#: the inner call is checked
OF_ANOTHER: Final = frozenset({READ_ANY, "plans.create", APPLY, "changes.undo"})
#: every caller sees and ends its own, and others' with the permission (`Sight.made_by`)
OWN: Final = frozenset(
    {"plans.list", "plans.show", "plans.discard", "tasks.list", "tasks.get", "tasks.cancel"}
)
NO_QUESTION: Final = FREE | OF_ANOTHER | OWN
#: they write files on the broker's host, which only the operator at its socket may do
ON_THE_MACHINE: Final = {"objects.export": "to", "audit.export": "to"}  # if that argument is given
#: lists open to every caller that sees a part of them: their handlers show items by `Sight`
CUT: Final = frozenset({"topics.list", "namespaces.list", "subscriptions.list", "subscriptions.lag"})
#: all permissions on a namespace do not include its quotas or the load of all brokers
ON_CLUSTER: Final = frozenset({"quotas.set", "reports.balance"})
#: operations whose argument `topic` is a glob, which without a namespace is over the names of all
OF_GLOBS: Final = frozenset({"reports.lag", "reports.traffic"})
#: they copy or show messages of the topic that they name: the caller must be able to read that topic some other way
READ_MESSAGES: Final = frozenset(
    {"topics.replay", "dead_letters.list", "dead_letters.replay", "objects.export"}
)
READING: Final = "messages:read"  # or `data:consume`
#: arguments that name a topic which the operation writes
WRITTEN: Final = {
    "audit.export": "into",
    "topics.replay": "to",
    "dead_letters.replay": "to",
    "subscriptions.set_failure_policy": "dead_letter_topic",
}

#: their worker reads or writes the topics of the file, with its own rights
DECLARES_CONNECTOR: Final = frozenset({"connectors.create", "connectors.set"})
#: the brokers write the link's mirrors, with their own rights
DECLARES_LINK: Final = frozenset({"links.create"})

#: the call whose permission was checked last in this task: the one being carried out
call_under_way: ContextVar[Call | None] = ContextVar("call_under_way", default=None)


def sits_at_the_broker() -> bool:
    """Return whether the caller is the operator at this broker's socket, who may name any path."""
    identity = current_identity.get()
    return identity is not None and identity.everything and not relayed_by.get()


def may_use(operation: Operation, held: Collection[str]) -> bool:
    """Return whether these permissions, on any resource, suffice to use an operation at all.

    Free operations and those on the caller's own things are never refused. An operation that contains another
    call is checked by that call, and a caller without permissions has nothing to plan.
    """
    if operation.name in FREE | OWN:
        return True
    if operation.name in READ_MESSAGES and not (holds(held, READING) or holds(held, CONSUME)):
        return False
    return bool(held) if operation.name in OF_ANOTHER else holds(held, operation.permission)


def check_permission(port: ClusterPort, call: Call) -> Call:
    """Return the call if its caller may make it. Nothing is checked while authorization is off.

    Raises `Unauthenticated`, `PermissionDenied`: the caller may not. The error does not show whether the
    named things exist.
    """
    call_under_way.set(call)
    locks, operation = port.locks, call.operation
    if locks is None or operation.name in NO_QUESTION:
        return call
    identity = current_identity.get()
    for permission, resource in needs(call):
        in_part = operation.name in CUT and permission == operation.permission
        if not (in_part and locks.allows_part(identity, permission, resource)):
            locks.check(identity, permission, resource)
    if operation.name in READ_MESSAGES:
        source = _resource(call.arguments.get("topic"), None)
        if not locks.required or not locks.allows(identity, CONSUME, source):
            locks.check(identity, READING, source)
    writes_file = call.arguments.get(ON_THE_MACHINE.get(operation.name, "")) is not None
    if writes_file and locks.required and not sits_at_the_broker():
        raise PermissionDenied(
            f"{operation.name} writes files of the broker's machine: call it there, with --admin unix:DATA/admin.sock",
            permission=operation.permission,
        )
    return call


class Owned(Protocol):
    """Something that has an owner: a plan, a task, a change."""

    @property
    def principal(self) -> str: ...

    @property
    def principal_type(self) -> str: ...

    @property
    def operation(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...


class Sight:
    """The view that a caller has of others' things, in a list or in an error that suggests names.

    Args:
        permission: required on each visible thing.
    """

    def __init__(self, port: ClusterPort, permission: str) -> None:
        self._locks = port.locks
        self._identity = current_identity.get()
        self._permission = permission
        self.everything = self._locks is None or self._locks.allows(self._identity, permission, CLUSTER)

    def topic(self, name: str) -> bool:
        """Return whether the caller sees a topic, by its full name (of a partitioned one, the parent's)."""
        _, namespace, topic = name.split("/", 2)
        return self._sees(Resource(namespace, topic))

    def namespace(self, name: str) -> bool:
        return self._sees(Resource(name))

    def made_by(self, record: Owned) -> bool:
        """Return whether the caller sees a plan, task or change: its own, or all.

        Equal names of different types are different principals. An actor sees things that the principal made
        only if the actor may make the same call.
        """
        if self.everything:
            return True
        identity = self._identity
        if identity is None or identity.principal != Principal(record.principal, record.principal_type):
            return False
        actor, locks = identity.actor, self._locks
        if actor is None or locks is None or record.operation in NO_QUESTION:
            return True
        try:
            return all(
                locks.allows(actor, permission, resource)
                for topic in record.arguments.get("topics") or [None]
                for permission, resource in _needs(record.operation, _with_topic(record.arguments, topic))
            )
        except (
            InvalidArgument,
            KeyError,
        ):  # a record of another release, or with arguments that are not shown
            return False

    def _sees(self, resource: Resource) -> bool:
        if self.everything or self._locks is None:
            return True
        return self._locks.allows(self._identity, self._permission, resource)


def needs(call: Call) -> Iterator[tuple[str, Resource]]:
    """Yield each needed permission with its resource. The operation itself refuses an invalid name."""
    return _needs(call.operation.name, call.arguments)


def _with_topic(arguments: Mapping[str, Any], topic: str | None) -> Mapping[str, Any]:
    """Return the arguments for one topic of a plan for many."""
    return arguments if topic is None else {**arguments, "topic": topic}


def _needs(name: str, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Resource]]:
    operation = known(name)
    if name in ON_CLUSTER:
        yield operation.permission, CLUSTER
        return
    if name in OF_GLOBS:
        yield operation.permission, _of_glob(arguments.get("topic"))
        return
    resource = _resource(arguments.get("topic"), arguments.get("namespace"))
    yield operation.permission, resource
    if resource.namespace == SYSTEM_NAMESPACE:
        yield AUDIT_READ, CLUSTER
    written = arguments.get(WRITTEN.get(name, ""))
    if isinstance(written, str) and written:
        yield PRODUCE, Resource.of(TopicName.parse(written))
    if name in DECLARES_CONNECTOR:
        yield from _of_connector(str(arguments.get("definition", "")))
    if name in DECLARES_LINK:
        yield from _of_link(str(arguments.get("topics", "")), str(arguments.get("rename") or ""))


def _of_connector(definition: str) -> Iterator[tuple[str, Resource]]:
    """Yield the rights that a connector's worker needs, and that its maker must hold. An invalid file is refused by the operation itself."""
    with suppress(InvalidArgument):
        tree = check_definition(definition)
        shape = tree.get("shape")
        # A record may choose its topic, by the file or by the source.
        chosen = isinstance(shape, Mapping) and "topic" in shape
        topics = [] if chosen else [Resource.of(TopicName.parse(each)) for each in topics_of(tree)]
        of_kind = {"sink": (CONSUME,), "source": (PRODUCE,)}
        for permission in of_kind.get(tree["connector"].rpartition("-")[2], (CONSUME, PRODUCE)):
            yield from ((permission, resource) for resource in topics or [CLUSTER])
        if registers_schemas(tree["connector"]):
            yield "schemas:create", CLUSTER


def _of_link(topics: str, rename: str) -> Iterator[tuple[str, Resource]]:
    """Yield the rights that writing the mirrors of a link takes, and that its maker must hold."""
    for text in topics.split(","):
        try:
            pattern = TopicPattern.parse(text.strip())
        except InvalidName:
            return  # the operation itself refuses the whole list
        mirrors = Resource(pattern.namespace, "" if pattern.is_glob else rename + pattern.glob)
        for permission in ("topics:create", "subscriptions:create", PRODUCE):
            yield permission, mirrors
    # The source's subjects are registered here, or added to, with their modes of compatibility.
    for permission in ("schemas:create", "schemas:change"):
        yield permission, CLUSTER


def _of_glob(topic: object) -> Resource:
    """Return the smallest resource that contains a glob of topics: a topic, a namespace, or the cluster."""
    text = topic if isinstance(topic, str) else ""
    namespace, _, name = text.removeprefix("/").partition("/")
    if not text.startswith("/") or not name or _WILD.intersection(namespace):
        return CLUSTER
    return (
        Resource(check_namespace(namespace))
        if _WILD.intersection(name)
        else Resource.of(TopicName.parse(text))
    )


def _resource(topic: object, namespace: object) -> Resource:
    if isinstance(topic, str) and topic:
        return Resource.of(TopicName.parse(topic))
    if isinstance(namespace, str) and namespace:
        return Resource(check_namespace(namespace))
    return CLUSTER
