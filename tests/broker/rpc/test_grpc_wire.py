"""gRPC's bytes: messages however they are cut, statuses and metadata as other implementations write them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_core.errors import GrpcStatus
from pydanube_core.grpc_wire import (
    MessageReader,
    Unpacker,
    WireError,
    decode_metadata,
    encode_metadata,
    frame,
    frame_gzip,
    is_sdk_agent,
    percent_decode,
    percent_encode,
    sdk_agent,
    timeout_s,
    trailers,
    unpack,
)


@given(
    messages=st.lists(st.tuples(st.binary(max_size=200), st.booleans()), max_size=8),
    cuts=st.lists(st.integers(0, 2000), max_size=10),
)
def test_any_split_of_the_bytes_yields_the_same_messages(
    messages: list[tuple[bytes, bool]], cuts: list[int]
) -> None:
    sent = b"".join(frame_gzip(text) if packed else frame(text) for text, packed in messages)
    reader = MessageReader(limit=1000, unpacker=Unpacker(1000, lambda: 0.0))
    found: list[bytes] = []
    for start, end in pairwise([0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]):
        found += reader.feed(b"##" + sent + b"##", start + 2, end + 2)
    assert found == [text for text, _ in messages]
    assert reader.held == 0


def test_a_message_beyond_the_limit_is_refused_by_its_first_five_bytes() -> None:
    reader = MessageReader(limit=10, unpacker=None)
    with pytest.raises(WireError) as caught:
        reader.feed(frame(bytes(11))[:5], 0, 5)
    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED


def test_a_packed_message_that_was_not_announced_is_refused() -> None:
    packed = frame_gzip(b"x")
    with pytest.raises(WireError):
        MessageReader(limit=10, unpacker=None).feed(packed, 0, len(packed))


def test_a_small_packed_message_is_not_unpacked_beyond_the_limit() -> None:
    bomb = frame_gzip(bytes(10_000_000))
    assert len(bomb) < 20_000
    with pytest.raises(WireError) as caught:
        MessageReader(limit=20_000, unpacker=Unpacker(20_000, lambda: 0.0)).feed(bomb, 0, len(bomb))
    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("damage", [b"no gzip", frame_gzip(b"whole")[5:-3], frame_gzip(b"a")[5:] + b"more"])
def test_what_is_not_gzip_is_refused(damage: bytes) -> None:
    with pytest.raises(WireError) as caught:
        unpack(damage, 100)
    assert caught.value.status is GrpcStatus.INTERNAL


@given(st.text())
def test_a_status_message_survives_as_ascii(text: str) -> None:
    sent = percent_encode(text)
    assert all(32 <= byte < 127 for byte in sent)
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert percent_decode(sent) == text


def test_the_special_status_message_of_the_interop_suite() -> None:
    text = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
    assert (
        percent_encode(text)
        == b"%09%0Atest with whitespace%0D%0Aand Unicode BMP %E2%98%BA and non-BMP %F0%9F%98%88%09%0A"
    )


@given(st.binary(), st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_metadata_goes_there_and_back(raw: bytes, text: str) -> None:
    metadata = (("x-trace-bin", raw), ("x-name", text))
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_metadata_of_http_and_grpc_is_not_the_callers() -> None:
    fields = (
        (b"te", b"trailers"),
        (b"grpc-timeout", b"1S"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"x"),
        (b"a-bin", b"AQI,AwQ="),
        (b"bad-bin", b"!"),
    )
    assert decode_metadata(fields) == (("user-agent", "x"), ("a-bin", b"\1\2"), ("a-bin", b"\3\4"))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"4m", 0.004), (b"5u", 5e-6), (b"6n", 6e-9), (b"0m", 0)],
)
def test_timeouts_in_every_unit(value: bytes, seconds: float) -> None:
    assert timeout_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [b"", b"S", b"1", b"1s", b"123456789S", b"-1S", b"1.5S"])
def test_what_is_no_timeout_is_refused(value: bytes) -> None:
    with pytest.raises(WireError):
        timeout_s(value)


def test_trailers_say_status_text_and_metadata() -> None:
    assert trailers(5, "no ä", (("x-bin", b"\1"),)) == (
        (b"grpc-status", b"5"),
        (b"grpc-message", b"no %C3%A4"),
        (b"x-bin", b"AQ"),
    )


def test_what_unpacks_to_more_than_anything_real_has_a_budget() -> None:
    now = 0.0
    unpacker = Unpacker(64 << 20, lambda: now)
    bomb = frame_gzip(bytes(12 << 20))[5:]
    for _ in range(3):
        assert len(unpacker(bomb)) == 12 << 20
    with pytest.raises(WireError, match="many times their size") as caught:
        unpacker(bomb)
    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED
    now = 60.0
    assert len(unpacker(bomb)) == 12 << 20


def test_what_is_real_may_be_packed_without_end() -> None:
    unpacker = Unpacker(1 << 20, lambda: 0.0)
    real = bytes(range(256)) * 40 + b"".join(b"%d" % number for number in range(9000))
    packed = frame_gzip(real)[5:]
    for _ in range(500):
        assert unpacker(packed) == real


def test_a_message_that_unpacks_beyond_16_mib_is_no_larger_than_20_times() -> None:
    bomb = frame_gzip(bytes(17 << 20))[5:]
    with pytest.raises(WireError) as caught:
        unpack(bomb, 64 << 20)
    assert caught.value.status is GrpcStatus.RESOURCE_EXHAUSTED


def test_our_sdk_is_known_by_its_user_agent_in_any_version() -> None:
    assert sdk_agent().startswith("pydanube/")
    assert all(map(is_sdk_agent, ("pydanube", "pydanube/0.1.0", "pydanube/9", sdk_agent())))
    assert not any(map(is_sdk_agent, ("pydanubes", "grpc-rust/pydanube/1", "", None, b"pydanube")))
