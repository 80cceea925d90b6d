"""Sessions of idempotent producers: whose they are, how long they are remembered, and what heads say of them."""

from __future__ import annotations

import pytest
from pydanube_broker.journal.records import RecordHeader, RecordKind
from pydanube_broker.topics.log_state import LogState, decode_head, encode_head, encode_session_body
from pydanube_broker.topics.producers import MAX_PRODUCERS, RECENT, SESSION_AGE_S, Opening, Producers
from pydanube_core.errors import ProducerFenced, ProducerUnknown


def test_a_session_is_gone_on_with_by_its_token_only() -> None:
    producers = Producers()
    opening = producers.prepare("p", 77)
    producers.open(opening)
    assert producers.resume(opening.producer_id, 1, 77).name == "p"
    for token in (0, 78):
        with pytest.raises(ProducerUnknown):
            producers.resume(opening.producer_id, 1, token)


def test_a_session_of_before_there_were_tokens_is_not_gone_on_with() -> None:
    producers = Producers()
    producers.add(1, 1, "old")
    with pytest.raises(ProducerUnknown):
        producers.resume(1, 1, 0)


def test_an_exclusive_producer_writes_until_another_has_opened_its_name() -> None:
    producers = Producers()
    living = producers.open(producers.prepare("p", 1, exclusive=True))
    first, second = (producers.prepare("p", token, exclusive=True) for token in (2, 3))
    assert producers.check(living.producer_id, 1, 0, 5) is None
    assert producers.give_up(first) == Opening(living.producer_id, 1, 1, "p")
    assert producers.check(living.producer_id, 1, 0, 5) is None
    producers.open(second)
    with pytest.raises(ProducerFenced):
        producers.check(living.producer_id, 1, 0, 5)
    with pytest.raises(ProducerFenced):
        producers.open(first)


def test_a_producer_of_the_epoch_right_before_is_fenced_and_one_of_a_later_epoch_is_unknown() -> None:
    producers = Producers()
    former = producers.open(producers.prepare("p", 1, exclusive=True))
    following = producers.prepare("p", 2, exclusive=True)
    assert following.epoch == former.epoch + 1
    producers.open(following)
    for call in (
        lambda epoch: producers.check(following.producer_id, epoch, 0, 5),
        lambda epoch: producers.resume(following.producer_id, epoch, 2),
        lambda epoch: producers.resume_foreign(following.producer_id, epoch, 2),
    ):
        with pytest.raises(ProducerFenced) as fenced:
            call(following.epoch - 1)
        assert fenced.value.details["outcome"] == "unknown"
        call(following.epoch)
        with pytest.raises(ProducerUnknown):
            call(following.epoch + 1)


def test_the_thousand_and_first_connected_producer_keeps_its_session() -> None:
    producers = Producers()
    for number in range(MAX_PRODUCERS + 1):
        session = producers.open(producers.prepare(f"p{number}", number + 1))
        session.connections += 1
    assert producers.check(session.producer_id, 1, 0, 5) is None
    assert producers.resume(1, 1, 1).name == "p0"


def test_a_session_that_nobody_uses_is_forgotten_and_a_connected_one_is_not() -> None:
    producers = Producers()
    idle, busy = (producers.open(producers.prepare(name, 1)) for name in ("idle", "busy"))
    busy.connections = 1
    producers.expire(100.0)
    producers.expire(100.0 + SESSION_AGE_S - 1)
    assert len(producers) == 2
    before = producers.changes
    producers.expire(100.0 + SESSION_AGE_S)
    assert producers.sessions() == [busy]
    assert producers.changes > before
    assert producers.prepare("next", 1).producer_id > idle.producer_id


def record(body: bytes, kind: RecordKind) -> tuple[RecordHeader, memoryview]:
    return RecordHeader(kind, 0, 0, 0, 7, len(body), 0), memoryview(body)


def test_heads_and_records_keep_tokens_and_the_last_record_says_who_has_the_session() -> None:
    state = LogState(7, opened=True)
    state.producers.prepare("a", 5)
    state.producers.prepare("a", 6, exclusive=True)
    head = memoryview(b"".join(encode_head([state])))
    read = decode_head(head)[7]
    assert [(s.epoch, s.token) for s in read.producers.sessions()] == [(2, 6)]
    read.apply(*record(encode_session_body(Opening(1, 1, 5, "a")), RecordKind.SESSION))
    assert [(s.epoch, s.token) for s in read.producers.sessions()] == [(1, 5)]


def test_batches_that_are_taken_back_are_new_when_they_come_again() -> None:
    producers = Producers()
    few, many = (producers.add(number, 1, f"p{number}", token=number) for number in (1, 2))
    for n in range(4):
        producers.appended(few.producer_id, 1, n * 10, 10, n * 100, 0)
    for n in range(RECENT + 1):
        producers.appended(many.producer_id, 1, n, 1, 1000 + n, 0)
    producers.take_back(200)
    assert few.next_sequence == 20
    assert producers.check(1, 1, 20, 10) is None
    stored = producers.check(1, 1, 10, 10)
    assert stored is not None
    assert stored.base_offset == 100
    with pytest.raises(ProducerUnknown):  # whether its first batch was taken back nobody knows
        producers.check(2, 1, 0, 1)
