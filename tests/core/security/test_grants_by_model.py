"""Grants against a plain model: patterns of the shell over a few short names, without any index or cache."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydanube_core.security import permissions
from pydanube_core.security.permissions import (
    CLUSTER,
    Binding,
    Grants,
    Principal,
    Resource,
    Role,
    Scope,
    holds,
)

ANN, BOB = Principal("ann"), Principal("bob")
ASKED = [f"{area}:{verb}" for area in ("topics", "data") for verb in ("read", "delete")]
HELD = [*ASKED, "topics:*", "data:*", "*:read", "*:delete", "*"]
WORDS = ["".join(letters) for length in (1, 2, 3) for letters in product("ab", repeat=length)]
NAMES = st.sampled_from([word for word in WORDS if len(word) < 3])
STAR = st.sampled_from(["", "*"])
#: Names of up to three letters: a pattern of two with a star matches some of them
EVERYTHING = [
    CLUSTER,
    *(Resource(namespace) for namespace in WORDS),
    *(Resource(namespace, topic) for namespace in WORDS for topic in WORDS),
]
NAMESPACES = st.just("*") | st.builds("{}{}{}".format, st.sampled_from(["", "/"]), NAMES, STAR)
TOPICS = (
    st.just("*")
    | st.builds("/{}*".format, NAMES)
    | st.builds("/{}/*".format, NAMES)
    | st.builds("/{}/{}{}".format, NAMES, NAMES, STAR)
)
PLACES = (
    st.just((Scope.CLUSTER, ""))
    | NAMESPACES.map(lambda pattern: (Scope.NAMESPACE, pattern))
    | TOPICS.map(lambda pattern: (Scope.TOPIC, pattern))
)
BINDINGS = st.builds(
    lambda principal, roles, place: Binding(
        id="b", principal=principal, roles=tuple(roles), scope=place[0], resource=place[1]
    ),
    st.sampled_from([ANN, ANN, BOB]),
    st.lists(st.sampled_from(["one", "two", "missing"]), max_size=2),
    PLACES,
)
ROLES = st.lists(st.sampled_from(HELD), max_size=2)
RESOURCES = st.just(CLUSTER) | st.builds(Resource, NAMES, st.just("") | NAMES)


def bound(scope: Scope, resource: str) -> Binding:
    return Binding(id="b", principal=ANN, roles=("one",), scope=scope, resource=resource)


def reaches(binding: Binding, resource: Resource) -> bool:
    match binding.scope:
        case Scope.CLUSTER:
            return True
        case Scope.NAMESPACE:
            return resource != CLUSTER and fnmatchcase(resource.namespace, binding.resource.lstrip("/"))
        case Scope.TOPIC:
            return resource.topic != "" and fnmatchcase(str(resource), binding.resource)


def is_within(resource: Resource, whole: Resource) -> bool:
    return whole in (CLUSTER, resource, Resource(resource.namespace))


@given(ROLES, ROLES, st.lists(BINDINGS, max_size=4), st.sampled_from(ASKED), RESOURCES)
@example(["*"], [], [bound(Scope.TOPIC, "/a*")], "topics:read", Resource("b"))
@example(["*"], [], [bound(Scope.TOPIC, "/a*")], "topics:read", Resource("ab"))
@example(["*"], [], [bound(Scope.TOPIC, "/a/b")], "topics:read", Resource("a"))
@example(["*"], [], [bound(Scope.TOPIC, "/ab/b")], "topics:read", Resource("a"))
@example(["*"], [], [bound(Scope.TOPIC, "/a/b")], "topics:read", Resource("a", "a"))
@example(["*"], [], [bound(Scope.NAMESPACE, "a*")], "topics:read", Resource("b", "a"))
def test_a_principal_may_what_its_bindings_reach_and_sees_a_part_where_they_reach_some_of_it(
    one: list[str], two: list[str], bindings: list[Binding], asked: str, where: Resource
) -> None:
    held = {"one": one, "two": two}
    giving = [
        binding
        for binding in bindings
        if binding.principal == ANN
        and any(fnmatchcase(asked, each) for role in binding.roles for each in held.get(role, ()))
    ]
    grants = Grants.of((Role(name=name, permissions=tuple(each)) for name, each in held.items()), bindings)
    may = any(reaches(binding, where) for binding in giving)
    assert [grants.decide(ANN, asked, where).allowed for _ in range(2)] == [may, may]
    some = [each for each in EVERYTHING if is_within(each, where)]
    assert grants.decide_part(ANN, asked, where) is any(
        reaches(binding, each) for binding in giving for each in some
    )


@given(ROLES, PLACES, ROLES, PLACES)
@example(["*"], (Scope.NAMESPACE, "a*"), ["*"], (Scope.NAMESPACE, "a"))
@example(["*"], (Scope.NAMESPACE, "ab*"), ["*"], (Scope.NAMESPACE, "a*"))
@example(["*"], (Scope.TOPIC, "/a*"), ["*"], (Scope.TOPIC, "/a/b"))
@example(["*"], (Scope.NAMESPACE, "a"), ["*"], (Scope.TOPIC, "/a*"))
def test_a_principal_that_may_grant_a_role_may_itself_do_everything_that_it_gives(
    mine: list[str], my_place: tuple[Scope, str], given_permissions: list[str], place: tuple[Scope, str]
) -> None:
    ours = bound(*my_place)
    theirs = Binding(id="c", principal=BOB, roles=("two",), scope=place[0], resource=place[1])
    roles = [
        Role(name="one", permissions=tuple(mine)),
        Role(name="two", permissions=tuple(given_permissions)),
    ]
    grants = Grants.of(roles, [ours, theirs])
    if not grants.held(ANN, "two", *place):
        return
    for asked, where in product(ASKED, EVERYTHING):
        if grants.decide(BOB, asked, where).allowed:
            assert grants.decide(ANN, asked, where).allowed


@given(st.lists(st.sampled_from(HELD), max_size=3), st.sampled_from(HELD))
@example([], "topics:read")
@example(["topics:read"], "topics:read")
@example(["topics:read"], "topics:*")
@example(["*:read"], "topics:read")
def test_permissions_hold_what_one_of_them_covers_and_nothing_else(held: list[str], asked: str) -> None:
    assert holds(held, asked) is any(fnmatchcase(asked, each) for each in held)


def test_remembered_decisions_are_bounded_and_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "MOST_DECIDED", 3)
    grants = Grants.of((), [Binding(id="b", principal=ANN, roles=("admin",), scope=Scope.CLUSTER)])
    first = grants.decide(ANN, "topics:read")
    others = [grants.decide(ANN, f"topics:{verb}") for verb in ("change", "delete")]
    assert grants.decide(ANN, "topics:read") is first, "three are remembered"
    grants.decide(ANN, "topics:list")  # all are forgotten before a fourth
    again = grants.decide(ANN, "topics:read")
    assert again is not first
    assert again == first == others[0]
