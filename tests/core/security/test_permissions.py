"""The decision: what a binding allows, and that nothing else is."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.names import TopicName
from pydanube_core.security.permissions import (
    BUILT_IN,
    CLUSTER,
    CONSUME,
    ORIGINAL,
    PRODUCE,
    Binding,
    Grants,
    Principal,
    Resource,
    Role,
    Scope,
)

ANN = Principal("ann")
BOB = Principal("bob")


def bound(*roles: str, scope: str = "cluster", resource: str = "", principal: Principal = ANN) -> Binding:
    return Binding(
        id=f"{principal}-{resource}", principal=principal, roles=roles, scope=Scope(scope), resource=resource
    )


def topic(name: str) -> Resource:
    return Resource.of(TopicName.parse(name))


@pytest.mark.parametrize(
    ("binding", "permission", "resource", "allowed"),
    [
        (bound("admin"), "topics:delete", topic("/a/b"), True),
        (bound("admin"), "brokers:change", CLUSTER, True),
        (bound("viewer"), "topics:read", topic("/a/b"), True),
        (bound("viewer"), "topics:delete", topic("/a/b"), False),
        (bound("viewer"), CONSUME, topic("/a/b"), False),
        (bound("producer", scope="topic", resource="/a/b"), PRODUCE, topic("/a/b"), True),
        (bound("producer", scope="topic", resource="/a/b"), PRODUCE, topic("/a/b-part-3"), True),
        (bound("producer", scope="topic", resource="/a/b"), PRODUCE, topic("/a/bb"), False),
        (bound("producer", scope="topic", resource="/a/b"), CONSUME, topic("/a/b"), False),
        (bound("producer", scope="topic", resource="/a/b*"), PRODUCE, topic("/a/bb"), True),
        (bound("producer", scope="topic", resource="/a/b*"), PRODUCE, topic("/a/c"), False),
        (bound("producer", scope="namespace", resource="a"), PRODUCE, topic("/a/c"), True),
        (bound("producer", scope="namespace", resource="a"), PRODUCE, topic("/ab/c"), False),
        (bound("producer", scope="namespace", resource="/a"), PRODUCE, topic("/a/c"), True),
        (bound("producer", scope="namespace", resource="a*"), PRODUCE, topic("/ab/c"), True),
        (bound("admin", scope="namespace", resource="a"), "brokers:read", CLUSTER, False),
        (bound("admin", scope="topic", resource="/a/b"), "namespaces:change", Resource("a"), False),
        # every namespace is not the cluster, and every topic is neither a namespace nor the cluster
        (bound("admin", scope="namespace", resource="*"), "brokers:read", CLUSTER, False),
        (bound("admin", scope="namespace", resource="*"), "namespaces:change", Resource("a"), True),
        (bound("admin", scope="topic", resource="*"), "brokers:read", CLUSTER, False),
        (bound("admin", scope="topic", resource="*"), "namespaces:change", Resource("a"), False),
        (bound("no-such-role"), PRODUCE, topic("/a/b"), False),
    ],
)
def test_a_binding_allows_what_its_roles_hold_where_it_is_bound(
    binding: Binding, permission: str, resource: Resource, allowed: bool
) -> None:
    decision = Grants.of((), [binding]).decide(ANN, permission, resource)
    assert decision.allowed is allowed
    assert (decision.binding == binding.id) is allowed


def test_the_same_name_of_another_kind_is_somebody_else() -> None:
    grants = Grants.of((), [bound("admin")])
    assert not grants.decide(Principal("ann", "service_account"), PRODUCE, topic("t")).allowed
    assert not grants.decide(BOB, PRODUCE, topic("t")).allowed


@pytest.mark.parametrize("name", sorted(ORIGINAL))
def test_every_permission_of_the_original_is_known(name: str) -> None:
    role = Role(name="r", permissions=(name,))
    grants = Grants.of([role], [bound("r")])
    for permission in ORIGINAL[name]:
        assert grants.decide(ANN, permission.replace("*", "any"), CLUSTER).allowed
    assert grants.decide(ANN, "something:else").allowed is (name == "ManageCluster")


def test_no_role_takes_the_name_of_a_built_in_one() -> None:
    grants = Grants.of([Role(name="viewer", permissions=("*",))], [bound("viewer")])
    assert not grants.decide(ANN, "topics:delete", CLUSTER).allowed
    assert all(role.system for role in BUILT_IN)


def test_an_admin_is_who_may_do_everything_in_the_whole_cluster() -> None:
    """The last admin cannot be removed: who is one decides whether a cluster can be locked out of itself."""
    everything = Role(name="everything", permissions=("ManageCluster",))
    found = Grants.of(
        [everything],
        [
            bound("viewer", "admin"),
            bound("everything", principal=BOB),
            bound("admin", scope="namespace", resource="*", principal=Principal("of-namespaces")),
            bound("admin", scope="topic", resource="*", principal=Principal("of-topics")),
            bound("viewer", principal=Principal("viewer")),
            bound("no-such-role", principal=Principal("nobody")),
        ],
    ).admins()
    assert found == {ANN, BOB}


@pytest.mark.parametrize(
    ("mine", "role", "scope", "resource", "may"),
    [
        (bound("admin"), "admin", "cluster", "", True),
        (bound("viewer"), "admin", "cluster", "", False),
        (bound("viewer"), "viewer", "namespace", "a", True),
        (bound("admin", scope="namespace", resource="a"), "producer", "topic", "/a/t", True),
        (bound("admin", scope="namespace", resource="a"), "producer", "topic", "/a/*", True),
        (bound("admin", scope="namespace", resource="a"), "producer", "topic", "/a*", False),
        (bound("admin", scope="namespace", resource="a"), "producer", "namespace", "a*", False),
        (bound("admin", scope="namespace", resource="a*"), "producer", "namespace", "ab*", True),
        (bound("admin", scope="namespace", resource="a"), "producer", "cluster", "", False),
        # every namespace is not the cluster: brokers, security and the audit are in none
        (bound("admin", scope="namespace", resource="*"), "admin", "cluster", "", False),
        (bound("admin", scope="namespace", resource="*"), "viewer", "cluster", "", False),
        (bound("admin", scope="topic", resource="*"), "admin", "cluster", "", False),
        (bound("admin", scope="namespace", resource="*"), "producer", "namespace", "a*", True),
        (bound("admin", scope="topic", resource="/a/b*"), "producer", "topic", "/a/bb", True),
        (bound("admin", scope="topic", resource="/a/b*"), "producer", "topic", "/a/*", False),
        (bound("admin", scope="topic", resource="/a/b*"), "producer", "namespace", "a", False),
    ],
)
def test_a_principal_cannot_grant_permissions_that_it_lacks(
    mine: Binding, role: str, scope: str, resource: str, may: bool
) -> None:
    assert Grants.of((), [mine]).held(ANN, role, Scope(scope), resource) is may


NAMES = st.text("ab", min_size=1, max_size=3)
PATTERNS = st.builds(lambda name, star: name + star, NAMES, st.sampled_from(["", "*"]))


@given(PATTERNS, PATTERNS, PATTERNS, PATTERNS, NAMES, NAMES)
def test_what_may_be_granted_allows_nothing_that_the_granter_may_not(
    mine_ns: str, mine_topic: str, ns: str, name: str, namespace: str, topic_name: str
) -> None:
    ours = Binding(
        id="1", principal=ANN, roles=("producer",), scope=Scope.TOPIC, resource=f"/{mine_ns}/{mine_topic}"
    )
    given = Binding(id="2", principal=BOB, roles=("producer",), scope=Scope.TOPIC, resource=f"/{ns}/{name}")
    grants = Grants.of((), [ours, given])
    resource = Resource(namespace, topic_name)
    if (
        grants.held(ANN, "producer", Scope.TOPIC, given.resource)
        and grants.decide(BOB, PRODUCE, resource).allowed
    ):
        assert grants.decide(ANN, PRODUCE, resource).allowed


def test_a_decision_is_quick_among_many() -> None:
    """1 000 bindings of one, among 10 000 principals: far from the 20 µs that are promised for ten of them."""
    bindings = [
        bound("producer", scope="topic", resource=f"/a/t{number}", principal=Principal(f"p{number}"))
        for number in range(10_000)
    ]
    bindings += [bound("consumer", scope="topic", resource=f"/a/t{number}") for number in range(10)]
    grants = Grants.of((), bindings)
    best = min(_timed(grants) for _ in range(50))
    assert best < 200e-6  # ten times the promise: the machine is shared


def _timed(grants: Grants) -> float:
    resource = topic("/a/t9")
    began = time.perf_counter()
    assert grants.decide(ANN, CONSUME, resource).allowed
    return time.perf_counter() - began
