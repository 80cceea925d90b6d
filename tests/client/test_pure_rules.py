"""The SDK's pure parts: retry delays, routing, the errors of gRPC, batches that are encoded anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube import Retry
from pydanube.routing import Router, Routing, fnv1a_64
from pydanube.sending.outbound import OutBatch, Session
from pydanube.wire.endpoint import parse_url
from pydanube.wire.statuses import error_of
from pydanube_core.batch import BatchView, Codec
from pydanube_core.errors import ConsumerBusy, InvalidArgument
from pydanube_core.frames import PUBLISH_BATCH_FIELD, read_bytes_field
from pydanube_core.ops_call import SENT


def test_keys_hash_as_the_official_clients_do() -> None:
    # check values of docs/research/data-plane.md#72-sendmessage
    assert [fnv1a_64(b"order-1") % n for n in (3, 4)] == [0, 1]
    assert [fnv1a_64(b"user-42") % n for n in (3, 4)] == [0, 3]
    assert [fnv1a_64("é".encode()) % n for n in (3, 4)] == [1, 1]


def test_round_robin_leaves_keys_out_of_account() -> None:
    router = Router(Routing.ROUND_ROBIN, 3)
    assert [router.pick("same", None) for _ in range(4)] == [0, 1, 2, 0]


@given(
    routing=st.sampled_from([Routing.KEY, Routing.ROUND_ROBIN]),
    partitions=st.integers(1, 5),
    parts=st.lists(
        st.none() | st.lists(st.none() | st.sampled_from(["", "a", "b", "é"]), max_size=9), max_size=4
    ),
    counts=st.integers(0, 9),
    down=st.sets(st.integers(0, 4)),
)
def test_a_part_is_spread_as_its_messages_would_be_one_by_one(
    routing: Routing, partitions: int, parts: list[list[str | None] | None], counts: int, down: set[int]
) -> None:
    single, whole = Router(routing, partitions), Router(routing, partitions)
    for keys in parts:
        count = counts if keys is None else len(keys)
        one_by_one: list[list[int]] = [[] for _ in range(partitions)]
        for at in range(count):
            one_by_one[single.pick(None if keys is None else keys[at], None, down=down)].append(at)
        encoded = None if keys is None else [None if key is None else key.encode() for key in keys]
        assert whole.spread(encoded, count, down=down) == one_by_one


def test_messages_in_turn_leave_out_partitions_that_are_down_and_keys_do_not() -> None:
    router = Router(Routing.KEY, 4)
    assert [router.pick(None, None, down={0, 2}) for _ in range(4)] == [1, 3, 1, 3]
    assert router.pick("order-1", None, down={1}) == 1
    assert router.pick(None, 2, down={2}) == 2
    assert [router.pick(None, None, down={0, 1, 2, 3}) for _ in range(3)] == [0, 1, 2]


@given(attempt=st.integers(1, 10_000), draw=st.floats(0, 0.999), wish=st.none() | st.integers(0, 5000))
def test_delays_stay_between_the_brokers_wish_and_the_bound(
    attempt: int, draw: float, wish: int | None
) -> None:
    delay_s = Retry(initial_s=0.05, max_delay_s=2).delay_s(attempt, draw=draw, retry_after_ms=wish)
    assert delay_s >= (wish or 0) / 1000
    assert delay_s <= max(2, (wish or 0) / 1000)


@pytest.mark.parametrize(
    "url", ["localhost:6650", "ftp://h:1", "http://h", "http://:1", "http://h:x", "http://h:1/p", ""]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_url(url)


def test_urls_become_targets() -> None:
    assert parse_url("http://127.0.0.1:6650") == ("127.0.0.1:6650", False)
    assert parse_url("https://[::1]:1/") == ("[::1]:1", True)


def test_an_error_that_travels_whole_arrives_whole() -> None:
    sent = ConsumerBusy("busy", subscription="s")
    trailers = (("danube-error-bin", sent.to_json().encode()),)
    error = error_of("PERMISSION_DENIED", "x", trailers, url="u")
    assert type(error) is ConsumerBusy
    assert error.to_dict() == sent.to_dict()


@pytest.mark.parametrize(
    ("status", "details", "code"),
    [
        ("NOT_FOUND", "TOPIC_NOT_FOUND: no such", "TOPIC_NOT_FOUND"),
        ("UNAVAILABLE", "connection refused", "UNAVAILABLE"),
        ("CANCELLED", "", "UNAVAILABLE"),
        ("UNKNOWN", "stream removed", "UNAVAILABLE"),
        ("INTERNAL", "Received RST_STREAM with error code 2", "UNAVAILABLE"),
        ("INTERNAL", "Internal error from Core", "UNAVAILABLE"),
        ("INTERNAL", "INTERNAL: a defect of the broker", "INTERNAL"),
        ("INVALID_ARGUMENT", "who knows", "INTERNAL"),
        ("UNIMPLEMENTED", "", "NOT_IMPLEMENTED"),
        ("DEADLINE_EXCEEDED", "", "DEADLINE_EXCEEDED"),
    ],
)
def test_grpc_errors_become_cluster_errors(status: str, details: str, code: str) -> None:
    error = error_of(status, details, (), url="http://h:1")
    assert error.code == code
    assert (SENT in error.details) == (code == "UNAVAILABLE"), "the broker may have had the request"


def test_a_connection_that_was_never_made_sent_nothing() -> None:
    text = "last error: Failed to connect to remote host: Connection refused"
    assert SENT not in error_of("UNAVAILABLE", text, (), url="http://h:1").details


@given(
    payloads=st.lists(st.binary(max_size=300), min_size=1, max_size=40),
    codec=st.sampled_from(Codec),
    data=st.data(),
)
def test_a_batch_opened_again_holds_what_it_held(
    payloads: list[bytes], codec: Codec, data: st.DataObject
) -> None:
    batch = OutBatch("/default/t", None)
    batch.payloads = list(payloads)
    rows = st.integers(0, len(payloads) - 1)
    keys = data.draw(
        st.none()
        | st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=len(payloads)).filter(any)
    )
    attributes = data.draw(
        st.none()
        | st.dictionaries(
            rows, st.dictionaries(st.text(max_size=3), st.text(max_size=3), min_size=1), min_size=1
        )
    )
    batch.keys, batch.attributes = keys and list(keys), attributes
    session = Session(
        producer_id=7,
        epoch=1,
        next_sequence=100,
        producer_name="p",
        durability="memory",
        schema=(3, 1),
        token=5,
        topic_id=6,
    )
    batch.encode(session, codec)
    assert session.next_sequence == 100 + len(payloads) == batch.first_sequence + batch.count
    body = read_bytes_field(PUBLISH_BATCH_FIELD, batch.wire)
    assert body is not None
    assert BatchView(body).part.first_sequence == 100
    batch.reopen()
    assert batch.payloads == payloads
    assert batch.keys == (None if keys is None else keys + [None] * (len(payloads) - len(keys)))
    assert batch.attributes == attributes
    assert len(batch) == len(payloads)
