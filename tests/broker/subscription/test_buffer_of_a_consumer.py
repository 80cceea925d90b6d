"""A consumer's buffer against a list of its messages: what is taken, what is given back, and how many are left."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydanube_broker.subscription.consumer import Unhandled

from tests.core.batches import steady

CHUNKS: list[Any] = [object() for _ in range(3)]


def places(chunk: int, mask: int) -> list[tuple[int, int]]:
    return [(chunk, bit) for bit in range(mask.bit_length()) if mask >> bit & 1]


def flat(parts: list[tuple[Any, int]]) -> list[tuple[int, int]]:
    return [each for chunk, mask in parts for each in places(CHUNKS.index(chunk), mask)]


sends = st.tuples(st.just("sent"), st.integers(0, 2), st.integers(1, 255))
takes = st.tuples(st.just("take"), st.integers(0, 40), st.just(0))
returns = st.tuples(st.just("given_back"), st.integers(0, 2), st.integers(1, 255))


@steady
@given(steps=st.lists(sends | takes | returns, max_size=30))
def test_a_buffer_holds_what_was_sent_and_neither_taken_nor_given_back(
    steps: list[tuple[str, int, int]],
) -> None:
    buffer, model, taken = Unhandled(), list[tuple[int, int]](), 0
    for step, number, mask in steps:
        match step:
            case "sent":
                buffer.sent(CHUNKS[number], mask)
                model += places(number, mask)
            case "take":
                count = min(max(0, number - taken), len(model))
                assert flat(buffer.take(number)) == model[:count]
                del model[:count]
                taken += count
            case _:
                buffer.given_back({CHUNKS[number]: mask})
                for each in places(number, mask):
                    if each in model:  # the one that was sent last
                        del model[len(model) - 1 - model[::-1].index(each)]
        assert (buffer.messages, buffer.taken) == (len(model), taken)
        assert flat(buffer.parts()) == model
