"""Answers that the broker has not carried out are kept for the topic's next owner: in order, and not without bound."""

from __future__ import annotations

from pydanube.receiving.repeated_answers import MOST_REPEATED, RepeatedAnswers
from pydanube_core.generated import danube_stream_pb2 as pb


def ack(number: int) -> pb.ConsumeRequest:
    return pb.ConsumeRequest(ack=pb.Ack(session=1, ranges=[number, number + 1], confirm=7))


def noted(count: int) -> RepeatedAnswers:
    kept = RepeatedAnswers()
    for number in range(count):
        kept.note(ack(number))
    return kept


def again(kept: RepeatedAnswers) -> list[int]:
    return [message.ack.ranges[0] for message in kept.resume(2)]


def test_what_the_former_owner_did_not_carry_out_is_sent_again_in_order() -> None:
    kept = noted(5)
    kept.owner_left(3)
    assert kept.complete
    sent = kept.resume(2)
    assert [(each.ack.session, each.ack.ranges[0], each.ack.confirm) for each in sent] == [
        (2, 3, 0),
        (2, 4, 0),
    ]
    kept.note(ack(5))
    kept.owner_left(2)  # by the number of the stream that goes on: those two, not the third
    assert again(kept) == [5]


def test_a_session_goes_on_exactly_while_all_that_was_not_carried_out_is_kept() -> None:
    kept = noted(MOST_REPEATED)
    kept.owner_left(0)
    assert kept.complete
    assert again(kept) == list(range(MOST_REPEATED))
    kept = noted(MOST_REPEATED + 1)
    kept.owner_left(1)
    assert kept.complete
    assert again(kept) == list(range(1, MOST_REPEATED + 1))
    kept = noted(MOST_REPEATED + 1)
    kept.owner_left(0)
    assert not kept.complete, "the oldest answer is gone, and the session cannot go on without it"


def test_answers_that_are_kept_are_bounded_however_long_a_stream_lives() -> None:
    kept = noted(4 * MOST_REPEATED)
    kept.owner_left(0)
    assert again(kept) == list(range(3 * MOST_REPEATED, 4 * MOST_REPEATED)), (
        "the newest answers, and no others"
    )


def test_an_owner_that_says_it_carried_out_more_than_was_sent_is_not_believed() -> None:
    kept = noted(2)
    kept.owner_left(3)
    assert not kept.complete


def test_a_stream_of_another_session_begins_with_nothing() -> None:
    kept = noted(3)
    assert not kept.complete, "it is not between two owners"
    kept.owner_left(0)
    assert not kept.settled.is_set()
    kept.begin_stream(keeps=False)
    assert (kept.settled.is_set(), kept.between_owners) == (True, False)
    kept.owner_left(0)
    assert again(kept) == []


def test_only_messages_that_were_given_back_are_given_back_again() -> None:
    kept = noted(1)
    kept.owner_left(0)
    assert not kept.gave_back
    kept = noted(1)
    kept.note(pb.ConsumeRequest(given_back=pb.GivenBack(session=1, ranges=[3, 4])))
    assert not kept.gave_back, "its owner is there, and has them"
    kept.owner_left(0)
    assert kept.gave_back
