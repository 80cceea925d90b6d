"""Namespaces, and policies: their names, the argument that sets them, and which changes are destructive."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import Field, PlainValidator, WithJsonSchema
from pydanube_core.errors import (
    AlreadyExists,
    InvalidArgument,
    NamespaceNotEmpty,
    NamespaceNotFound,
    Unavailable,
)
from pydanube_core.facts import NamespaceFacts, RetentionFacts
from pydanube_core.names import DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, TopicName, check_namespace
from pydanube_core.refusals import changed_since, namespace_taken, reused
from pydanube_core.spelling import close_names
from pydanube_core.units import counted, format_time

from pydanube_admin.engine.context import Context
from pydanube_admin.engine.declaration import Example
from pydanube_admin.engine.forecast import Done, Forecast, Undo, blast_radius, changes, entry, nothing_left
from pydanube_admin.engine.models import Change, Effect, Page, Request, Result, SortedListRequest
from pydanube_admin.engine.operation import next_call, operation
from pydanube_admin.engine.paging import glob, page_of
from pydanube_admin.engine.permission import Sight
from pydanube_admin.operations.present_use import refused_then, topics_over
from pydanube_admin.operations.unused import was_live
from pydanube_admin.peers import unseen_whys

PolicyName = Literal[
    "max_producers_per_topic",
    "max_subscriptions_per_topic",
    "max_consumers_per_topic",
    "max_consumers_per_subscription",
    "max_publish_rate",
    "max_subscription_dispatch_rate",
    "max_message_size",
    "retention_bytes",
    "retention_age_s",
    "retention_offset",
    "drop_unread",
    "alert_unread_messages",
    "alert_unread_age_s",
]


POLICIES: tuple[str, ...] = get_args(PolicyName)


# A map and not a field each: models read the schema with every turn, and the names need no description.
Policies = dict[PolicyName, Annotated[int, Field(ge=0)] | None]


def _policy_value(value: Any) -> int | str | None:
    """Check the type of a policy. The broker checks its value."""
    if isinstance(value, bool) or not isinstance(value, int | str | None):
        raise ValueError("neither an integer nor a string")
    return value


# Not a union of validators, whose faults would name its alternatives
PolicyValue = Annotated[
    int | str, PlainValidator(_policy_value), WithJsonSchema({"type": ["integer", "string"]})
]


# Policies of topics, and the default durability of new topics.
NamespacePolicies = dict[PolicyName | Literal["durability"], PolicyValue | None]


PoliciesArgument = Annotated[
    Policies,
    Field(
        description="0: no limit, null: not set here. Rates are messages a second. Retention waits for "
        "the slowest cursor unless drop_unread is 1. alert_…: per subscription"
    ),
]


_KEPT: Final = ("retention_bytes", "retention_age_s")  # 0: everything


def plain(policies: Mapping[Any, Any] | None) -> dict[str, Any]:
    return {str(name): value for name, value in (policies or {}).items()}


def check_some(policies: Mapping[Any, Any]) -> None:
    if not policies:
        raise InvalidArgument(
            f"policies is empty. Name at least one of {', '.join(POLICIES)}", field="policies", value={}
        )


def with_changes(
    effective: Mapping[str, Any], given: Mapping[str, Any], above: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the policies after a change: None removes one, and then the one `above` is in effect."""
    return {
        **effective,
        **{name: above.get(name, 0) if value is None else value for name, value in given.items()},
    }


def shortens_retention(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Return whether the policies after keep fewer messages than those before."""
    shorter = any(
        after.get(name, 0) and (not before.get(name, 0) or after[name] < before[name]) for name in _KEPT
    )
    further = after.get("retention_offset", 0) > before.get("retention_offset", 0)
    limited = any(after.get(name, 0) for name in (*_KEPT, "retention_offset"))
    unread = limited and after.get("drop_unread", 0) > before.get("drop_unread", 0)
    return shorter or further or unread


def later_text(loss: RetentionFacts) -> str:
    """Describe the later deletions by retention, which follow those of the change itself."""
    when = "" if loss.later_from_ms is None else f", the first not before {format_time(loss.later_from_ms)}"
    reading = " once every subscription has acknowledged them" if loss.waits_for_cursors else ", read or not"
    stored = (
        f"{counted(loss.later_messages, 'more message' if loss.messages else 'message')} stored now may go "
        f"later{reading}{when}; so may "
        if loss.later_messages
        else ""
    )
    return f"{stored or 'Later, so may '}what is published from now on"


def restored(
    now: Mapping[str, Any], given: Mapping[str, Any], before: Mapping[str, Any], of: str
) -> dict[str, Any]:
    """Return the changes that undo `given`. Raises `Conflict` if those policies were set since."""
    if restoring(now, given) not in (given, restoring(before, given)):
        raise changed_since(f"a policy of {of}")
    return restoring(before, given)


def restoring(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that restore the former values of `given`."""
    return {name: before.get(name) for name in given}


NamespaceArgument = Annotated[str, Field(max_length=256, description="Its name")]


class NamespaceItem(Result):
    identity: ClassVar = ("namespace",)

    namespace: str
    topics: (
        int | None
    )  # a partitioned topic counts once. None: the caller has no topics:read on the namespace
    policies: dict[str, PolicyValue]
    created_at: str


class CreateNamespaceRequest(Request):
    namespace: NamespaceArgument
    policies: Annotated[
        NamespacePolicies | None,
        Field(
            description="As set_topic_policies. Default: none. durability: of topics created without, fsynced or stored"
        ),
    ] = None


class NamespaceRequest(Request):
    namespace: NamespaceArgument


class SetNamespacePoliciesRequest(Request):
    namespace: NamespaceArgument
    policies: Annotated[
        NamespacePolicies,
        Field(
            description="As set_topic_policies, for topics without their own. durability: of topics created later "
            "without, fsynced or stored"
        ),
    ]


class NamespacePoliciesResult(Result):
    namespace: str
    policies: dict[str, PolicyValue]  # set on the namespace
    effective: dict[str, PolicyValue]  # effective values for a topic that sets none


class ChangedNamespace(NamespacePoliciesResult, Change):
    pass


class DeletedNamespace(Change):
    namespace: str


@operation(
    "namespaces.list",
    effect=Effect.READ,
    summary="List namespaces with their topics and policies.",
    examples=(Example({}, "every namespace"),),
)
async def list_namespaces(context: Context, request: SortedListRequest) -> Page[NamespaceItem]:
    matches, sight = glob(request.filter), Sight(context.port, "namespaces:read")
    topics = Sight(context.port, "topics:read")
    found = [
        facts
        for facts in await context.port.namespaces()
        if matches(facts.namespace) and sight.namespace(facts.namespace)
    ]
    return await page_of(
        context,
        NamespaceItem,
        found,
        lambda facts: NamespaceItem.of(
            facts,
            topics=facts.topics if topics.namespace(facts.namespace) else None,
            created_at=format_time(facts.created_at_ms),
        ),
        key=lambda facts: (facts.namespace,),
        request=request,
    )


async def _changed(context: Context, name: str) -> ChangedNamespace:
    return ChangedNamespace(**(await _namespace_policies(context, name)).model_dump())


async def forecast_create_namespace(context: Context, request: CreateNamespaceRequest) -> Forecast:
    name = check_namespace(request.namespace)
    if any(facts.namespace == name for facts in await context.port.namespaces()):
        raise _taken(name)
    given = {key: value for key, value in plain(request.policies).items() if value is not None}
    return Forecast(diff=[entry(f"namespaces/{name}", None, {"policies": given})])


async def undo_create_namespace(context: Context, request: CreateNamespaceRequest, done: Done) -> Undo:
    name = check_namespace(request.namespace)
    found = [facts for facts in await context.port.namespaces() if facts.namespace == name]
    if not found:
        return Undo(act=nothing_left)
    if done.result is not None and dict(found[0].policies) != done.result["policies"]:
        raise changed_since(f"a policy of the namespace {name}")
    return Undo(act=partial(context.port.delete_namespace, name))


@operation(
    "namespaces.create",
    effect=Effect.CREATE,
    title="Create a namespace",
    summary="Create a namespace, optionally with limits for its topics.",
    forecast=forecast_create_namespace,
    undo=undo_create_namespace,
    examples=(
        Example({"namespace": "shop"}, "without limits of its own"),
        Example({"namespace": "shop", "policies": {"max_consumers_per_topic": 10}}, "with a limit"),
    ),
)
async def create_namespace(context: Context, request: CreateNamespaceRequest) -> ChangedNamespace:
    name = check_namespace(request.namespace)
    try:
        await context.port.create_namespace(name, plain(request.policies))
    except AlreadyExists as error:
        raise _taken(name) from error
    return await _changed(context, name)


async def _empty(context: Context, request: NamespaceRequest) -> NamespaceFacts:
    name = check_namespace(request.namespace)
    await _namespace_policies(context, name)
    (facts,) = [each for each in await context.port.namespaces() if each.namespace == name]
    if name in (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE):
        raise InvalidArgument(f"the namespace {name} always exists", field="namespace", value=name)
    if facts.topics:
        seen = Sight(context.port, "topics:read").namespace(name)
        raise NamespaceNotEmpty(
            f"the namespace {name} holds {counted(facts.topics, 'topic') if seen else 'topics'}. Delete its topics first",
            field="namespace",
            value=name,
            topics=facts.topics if seen else None,
        ).followed_by(next_call("topics.list", {"namespace": name}, "shows them"))
    return facts


async def forecast_delete_namespace(context: Context, request: NamespaceRequest) -> Forecast:
    facts = await _empty(context, request)
    before = {"policies": dict(facts.policies), "created_at": format_time(facts.created_at_ms)}
    return Forecast(
        diff=[entry(f"namespaces/{facts.namespace}", before, None)],
        image={"policies": dict(facts.policies), "created_at_ms": facts.created_at_ms},
    )


async def undo_delete_namespace(context: Context, request: NamespaceRequest, done: Done) -> Undo:
    name = check_namespace(request.namespace)
    if any(facts.namespace == name for facts in await context.port.namespaces()):
        if done.result is None:
            return Undo(act=nothing_left)  # it never went
        raise reused("namespace", name)
    created_at_ms = done.image.get("created_at_ms")
    return Undo(
        act=partial(context.port.create_namespace, name, done.image["policies"], created_at_ms=created_at_ms)
    )


@operation(
    "namespaces.delete",
    effect=Effect.DESTROY,
    title="Delete a namespace",
    summary="Delete a namespace that holds no topics.",
    forecast=forecast_delete_namespace,
    undo=undo_delete_namespace,
    examples=(Example({"namespace": "shop"}, "its policies go with it"),),
)
async def delete_namespace(context: Context, request: NamespaceRequest) -> DeletedNamespace:
    name = (await _empty(context, request)).namespace
    await context.port.delete_namespace(name)
    return DeletedNamespace(namespace=name)


def _taken(name: str) -> AlreadyExists:
    return namespace_taken(name).followed_by(
        next_call("namespaces.get_policies", {"namespace": name}, "shows the one that has the name")
    )


@operation(
    "namespaces.get_policies",
    effect=Effect.READ,
    title="Policies of a namespace",
    summary="Show the limits set on a namespace, and those that hold for a topic that sets none.",
    examples=(Example({"namespace": "default"}, "set and effective"),),
)
async def get_namespace_policies(context: Context, request: NamespaceRequest) -> NamespacePoliciesResult:
    return await _namespace_policies(context, check_namespace(request.namespace))


async def _namespace_policies(context: Context, name: str) -> NamespacePoliciesResult:
    try:
        found = await context.port.namespace_policies(name)
    except NamespaceNotFound as error:
        raise await no_namespace(context, name) from error
    return NamespacePoliciesResult(namespace=name, policies=dict(found.own), effective=dict(found.effective))


async def no_namespace(context: Context, name: str) -> NamespaceNotFound:
    """Return the error for an unknown namespace, with similar names."""
    sight = Sight(context.port, "namespaces:read")
    there = [facts.namespace for facts in await context.port.namespaces() if sight.namespace(facts.namespace)]
    close = close_names(name, there)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return NamespaceNotFound(
        f"there is no namespace {name}{hint}",
        field="namespace",
        value=name,
        did_you_mean=close,
        next=[
            *(
                next_call("namespaces.get_policies", {"namespace": other}, "one spelled alike")
                for other in close
            ),
            next_call("namespaces.list", {}, "shows the namespaces there are"),
            next_call("namespaces.create", {"namespace": name}, "creates it, if the name is meant so"),
        ],
    )


async def forecast_set_namespace_policies(context: Context, request: SetNamespacePoliciesRequest) -> Forecast:
    name = await _known(context, request)
    before = await context.port.namespace_policies(name)
    given = plain(request.policies)
    after = with_changes(before.effective, given, {})
    index = await context.port.topic_index()
    is_live = set(given) != {"durability"}  # which topics that exist keep
    topics = [key.topic for key in index if is_live and TopicName.parse(key.topic).namespace == name]
    facts_of = await context.port.topic_facts(topics)
    inside = [facts for facts, *_ in facts_of]
    if (away := unseen_whys()) and shortens_retention(before.effective, after):
        whys = "; ".join(f"{broker}: {why}" for broker, why in away.items())
        raise Unavailable(f"the loss cannot be computed: {whys}", retry_after_ms=1000)
    # A topic's own policies come first, so the same change can shorten one topic's retention and not another's.
    shortened = {
        facts.topic: {**after, **facts.policies}
        for facts in inside
        if shortens_retention({**before.effective, **facts.policies}, {**after, **facts.policies})
    }
    destroys = bool(shortened) or shortens_retention(before.effective, after)
    loss = await context.port.forecast_retention(shortened)
    limits = {key: after[key] for key in given}
    over = await topics_over(context, facts_of, limits, own_first=True)
    return Forecast(
        diff=changes(f"namespaces/{name}/policies", before.own, given),
        blast_radius=blast_radius(topics=len(inside), messages=loss.messages, bytes=loss.bytes),
        effect=Effect.DESTROY if destroys else None,
        reversible=not destroys,
        image={"own": dict(before.own)},
        basis=[dict(before.own), sorted(shortened), destroys],
        counts=loss.messages,
        was_live=await was_live(context, [facts for facts in inside if facts.topic in shortened])
        if shortened
        else None,
        later=". ".join([*([later_text(loss)] if destroys else []), *refused_then(over)]) or None,
    )


async def undo_set_namespace_policies(
    context: Context, request: SetNamespacePoliciesRequest, done: Done
) -> Undo:
    name = await _known(context, request)
    own = (await context.port.namespace_policies(name)).own
    before = restored(own, plain(request.policies), done.image["own"], f"the namespace {name}")
    back = request.model_copy(update={"policies": before})
    return Undo(
        act=partial(set_namespace_policies, context, back),
        forecast=await forecast_set_namespace_policies(context, back),
    )


@operation(
    "namespaces.set_policies",
    effect=Effect.CHANGE,
    may_destroy=True,
    title="Set policies of a namespace",
    permission="namespaces:change",
    summary="Set limits of every topic in a namespace that does not set its own. They hold immediately.",
    forecast=forecast_set_namespace_policies,
    undo=undo_set_namespace_policies,
    required_flags=("policies",),
    examples=(
        Example({"namespace": "shop", "policies": {"max_message_size": 65536}}, "messages of 64 KiB at most"),
        Example(
            {"namespace": "shop", "policies": {"durability": "stored"}}, "new topics are in the object store"
        ),
    ),
)
async def set_namespace_policies(context: Context, request: SetNamespacePoliciesRequest) -> ChangedNamespace:
    name = await _known(context, request)
    await context.port.set_namespace_policies(name, plain(request.policies))
    return await _changed(context, name)


async def _known(context: Context, request: SetNamespacePoliciesRequest) -> str:
    check_some(request.policies)
    return (await _namespace_policies(context, check_namespace(request.namespace))).namespace
