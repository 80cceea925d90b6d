"""Every code of docs/interface.md#5-errors-and-exit-codes, its exit code and gRPC status; and how errors travel."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import grpc
import pydanube_core.errors as errors_module
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.errors import (
    CODES,
    ClusterError,
    Conflict,
    Fatal,
    GrpcStatus,
    Internal,
    Misuse,
    Overloaded,
    Retryable,
    TopicNotFound,
    error_for,
)

from tests.core.batches import steady

# Transcribed from docs/interface.md#5-errors-and-exit-codes: exit code, then status and codes. Codes under "" stand
# there without a status: they end a command before any call is made.
TABLE: dict[int, dict[str, str]] = {
    1: {
        "NOT_FOUND": "TOPIC_NOT_FOUND SUBSCRIPTION_NOT_FOUND SCHEMA_NOT_FOUND NAMESPACE_NOT_FOUND PLAN_NOT_FOUND"
        " GRANT_NOT_FOUND CONNECTOR_NOT_FOUND LINK_NOT_FOUND",
        "ALREADY_EXISTS": "ALREADY_EXISTS",
        "FAILED_PRECONDITION": "NAMESPACE_NOT_EMPTY DISPATCH_MISMATCH SCHEMA_MISMATCH SCHEMA_INCOMPATIBLE LAST_BROKER"
        " NAME_REUSED DIVERGED",
        "PERMISSION_DENIED": "CONSUMER_BUSY PRODUCER_FENCED PRODUCER_UNKNOWN OUT_OF_SEQUENCE",
        "": "PORT_IN_USE DATA_DIR_LOCKED DATA_DIR_FOREIGN STORE_OWNED STORE_UNSUITABLE FORMAT_TOO_NEW INSECURE_BIND UNSUPPORTED_PLATFORM"
        " MISSING_EXTRA CLUSTER_MISMATCH TIER_NOT_SHARED FENCED",
        "UNIMPLEMENTED": "NOT_IMPLEMENTED",
        "INTERNAL": "JOURNAL_READ_ONLY INTERNAL",
    },
    2: {
        "INVALID_ARGUMENT": "INVALID_ARGUMENT INVALID_NAME MESSAGE_TOO_LARGE BATCH_TOO_LARGE CHECKSUM_MISMATCH"
        " SCHEMA_INVALID PAYLOAD_INVALID NOT_DELIVERED PAGE_INVALID",
    },
    3: {
        "UNAVAILABLE": "UNAVAILABLE DRAINING NOT_OWNER NO_OWNER FAILED_OVER STORE_UNAVAILABLE METADATA_UNAVAILABLE",
        "RESOURCE_EXHAUSTED": "OVERLOADED RATE_LIMITED LIMIT_REACHED QUOTA_EXCEEDED",
        "INTERNAL": "DISK_FULL",
        "DEADLINE_EXCEEDED": "DEADLINE_EXCEEDED",
        "ABORTED": "CONFLICT",
    },
    4: {
        "FAILED_PRECONDITION": "PLAN_REQUIRED PLAN_EXPIRED PLAN_USED PLAN_STALE PLAN_MISMATCH READ_ONLY FROZEN"
        " AUDIT_UNAVAILABLE MIRROR_READ_ONLY",
        "PERMISSION_DENIED": "PERMISSION_DENIED",
        "UNAUTHENTICATED": "UNAUTHENTICATED",
    },
    5: {"DATA_LOSS": "CORRUPT_JOURNAL CORRUPT_OBJECT OBJECT_MISSING AUDIT_BROKEN"},
}
ROWS = [
    (code, exit_code, status)
    for exit_code, statuses in TABLE.items()
    for status, codes in statuses.items()
    for code in codes.split()
]
# Of the SDK and of one command; they have no row, because no broker sends them.
LOCAL = {"CLOSED_RESOURCE": 2, "WINDOW_FULL": 2, "CONDITION_NOT_MET": 6}


@pytest.mark.parametrize(("code", "exit_code", "status"), ROWS)
def test_a_code_has_its_exit_code_and_status(code: str, exit_code: int, status: str) -> None:
    error = error_for(code, "why")
    assert error.code == code
    assert error.exit_code == exit_code
    if status:
        assert error.grpc_status.name == status
    assert error.retryable == (exit_code == 3) == isinstance(error, Retryable)
    assert isinstance(error, (Retryable, Fatal, Misuse))
    assert isinstance(error, Misuse) == (exit_code == 2)


def test_there_are_no_other_codes() -> None:
    assert set(CODES) == {code for code, _, _ in ROWS} | set(LOCAL)
    assert {code: CODES[code].exit for code in LOCAL} == LOCAL


def test_every_error_class_is_public_and_has_a_code_of_its_own() -> None:
    classes = {
        value
        for value in vars(errors_module).values()
        if isinstance(value, type) and issubclass(value, ClusterError)
    }
    concrete = classes - {ClusterError, Retryable, Fatal, Misuse}
    assert sorted(c.code for c in concrete) == sorted(CODES)
    assert not [c.__name__ for c in classes if c.__name__.startswith("_")]
    assert all(c.__doc__ for c in concrete)


def test_statuses_are_grpcs() -> None:
    assert {s.name: s.value for s in GrpcStatus}.items() <= {
        s.name: s.value[0] for s in grpc.StatusCode
    }.items()


def test_the_error_object() -> None:
    error = TopicNotFound("topic /default/orders does not exist", field="topic", value="/default/orders").suggest(
        "topics.create", tool="create_topic", command="danube topics create /default/orders", why="make it",
        arguments={"topic": "/default/orders"},
    )  # fmt: skip
    assert error.to_dict() == {
        "code": "TOPIC_NOT_FOUND",
        "message": "topic /default/orders does not exist",
        "retryable": False,
        "details": {"field": "topic", "value": "/default/orders"},
        "next": [
            {
                "operation": "topics.create",
                "tool": "create_topic",
                "command": "danube topics create /default/orders",
                "arguments": {"topic": "/default/orders"},
                "why": "make it",
            }
        ],
    }
    assert (
        str(error) == "TOPIC_NOT_FOUND: topic /default/orders does not exist"
    )  # what foreign clients are sent
    assert Overloaded(retry_after_ms=250).to_dict()["retry_after_ms"] == 250
    assert TopicNotFound().message == "topic not found"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
detail_names = st.text(max_size=8).filter(lambda name: name not in ("next", "retry_after_ms"))
errors = st.builds(
    error_for,
    st.sampled_from(sorted(CODES)),
    st.text(min_size=1, max_size=30),
    st.dictionaries(detail_names, values, max_size=4),
    st.lists(st.dictionaries(st.text(max_size=5), values, max_size=3), max_size=2),
    st.none() | st.integers(0, 10**6),
)


@steady
@given(error=errors)
def test_errors_survive_every_journey(error: ClusterError) -> None:
    journeys = [
        ClusterError.from_json(error.to_json()),
        ClusterError.from_dict(error.to_dict()),
        pickle.loads(pickle.dumps(error)),
        copy.deepcopy(error),
        copy.copy(error),
    ]
    for arrived in journeys:
        assert type(arrived) is type(error)
        assert arrived.to_dict() == error.to_dict()
        assert str(arrived) == str(error)


def test_details_that_are_no_json_are_shown_as_text() -> None:
    error = Internal("odd", value=b"\xff")
    assert json.loads(error.to_json())["details"]["value"] == "b'\\xff'"


def test_a_code_from_the_future_is_internal_and_keeps_its_name() -> None:
    error = ClusterError.from_dict({"code": "TOO_MODERN", "message": "?", "details": {"a": 1}})
    assert isinstance(error, Internal)
    assert error.details == {"a": 1, "original_code": "TOO_MODERN"}
    assert not error.retryable


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "[]", "null", "5", '"text"', "{}", '{"code": 5, "details": "x", "next": 3, "retry_after_ms": "y"}',
     '{"next": [1, null, {}], "details": [1]}', '{"code": null}'],
)  # fmt: skip
def test_an_error_that_cannot_be_read_is_still_an_error(text: str) -> None:
    error = ClusterError.from_json(text)
    assert isinstance(error, Internal)
    assert error.message
    json.loads(error.to_json())


@steady
@given(
    body=st.dictionaries(st.sampled_from(["code", "message", "details", "next", "retry_after_ms"]), values)
)
def test_any_object_is_some_error(body: dict[str, Any]) -> None:
    assert isinstance(ClusterError.from_dict(body), ClusterError)


def test_an_error_that_stays_as_it_is_says_so_wherever_it_goes() -> None:
    """CONFLICT passes as a rule: others were quicker. An undo after a later change never will."""
    race = Conflict("others were quicker", topic="/default/t")
    lasting = Conflict("the topic was changed again since", topic="/default/t", retryable=False)
    for error, may_pass in ((race, True), (lasting, False)):
        for again in (
            error,
            pickle.loads(pickle.dumps(error)),
            copy.copy(error),
            ClusterError.from_json(error.to_json()),
        ):
            assert (type(again), again.retryable, again.exit_code) == (Conflict, may_pass, 3)
            assert again.to_dict() == error.to_dict()
            assert "retryable" not in again.details
    assert not TopicNotFound("t", retryable=True).retryable
