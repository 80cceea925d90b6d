"""The decoder of pgoutput takes messages as the server writes them, and refuses what it cannot read."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydanube_connect.postgres.pgoutput import (
    UNCHANGED,
    Begin,
    Change,
    Commit,
    Message,
    Relation,
    Truncate,
    Values,
    decode,
)
from pydanube_connect.postgres.replication import lsn_of, lsn_text

VALUES = st.lists(st.one_of(st.none(), st.just(UNCHANGED), st.text(max_size=50)), max_size=10)


def row(values: Values) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if isinstance(value, str):
            data = value.encode()
            parts.append(b"t" + struct.pack(">I", len(data)) + data)
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


@given(old=VALUES, new=VALUES, mark=st.sampled_from([b"K", b"O", b""]))
def test_updates_come_back_as_they_were(old: Values, new: Values, mark: bytes) -> None:
    message = b"U" + struct.pack(">I", 7) + (mark + row(old) if mark else b"") + b"N" + row(new)
    assert decode(message) == Change(
        kind="update", relation=7, old=old if mark else None, old_is_key=mark == b"K", new=new
    )


@given(values=VALUES, cut=st.integers(min_value=0, max_value=400))
def test_a_message_that_is_cut_off_is_refused(values: Values, cut: int) -> None:
    whole = b"I" + struct.pack(">I", 7) + b"N" + row(values)
    if cut < len(whole):
        with pytest.raises(ValueError, match=r".*"):
            decode(whole[:cut])


@given(data=st.binary(max_size=200))
def test_any_bytes_are_an_event_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(decode(data), Begin | Commit | Relation | Change | Truncate | Message | None)


@given(lsn=st.integers(min_value=0, max_value=(1 << 64) - 1))
def test_positions_come_back(lsn: int) -> None:
    assert lsn_of(lsn_text(lsn)) == lsn
