"""The tier's process reads its messages from a stream: they come in any pieces, and the last one may be cut off."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydanube_broker.tier.messages import HEAD, encode_message
from pydanube_storage.objects import StoreOptions

BLOB = bytes(range(256)) * 5


class Process:
    """The process of a chain, which loads no pyarrow. It has answered its first message."""

    def __init__(self, store: Path) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pydanube_broker.tier.process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stderr=subprocess.PIPE,
            )
        options = {"options": asdict(StoreOptions(url=str(store))), "work": "chain"}
        self.socket.sendall(encode_message(1, options, 0))

    def answer(self) -> tuple[int, dict[str, Any], bytes]:
        number, text_bytes, blob_bytes = HEAD.unpack(self._exactly(HEAD.size))
        return number, json.loads(self._exactly(text_bytes)), self._exactly(blob_bytes)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += (piece := self.socket.recv(count - len(data)))
            assert piece, "the process has ended"
        return data

    def ended(self) -> tuple[int, bytes]:
        """Wait for the end. Return the exit status and the errors that the process wrote."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextlib.contextmanager
def process(store: Path) -> Iterator[Process]:
    found = Process(store)
    try:
        number, body, _ = found.answer()
        assert (number, body["result"]["pid"]) == (1, found.process.pid)
        yield found
    finally:
        found.socket.close()
        found.process.kill()
        found.process.communicate()


def create(number: int, key: str) -> bytes:
    return encode_message(number, {"call": "create", "arguments": {"key": key}}, len(BLOB)) + BLOB


@pytest.mark.parametrize("piece_bytes", [1, 7, 20, 10_000])
def test_a_message_in_any_pieces_is_answered_once_with_its_number(tmp_path: Path, piece_bytes: int) -> None:
    read = encode_message(2**40, {"call": "read", "arguments": {"key": "k", "most_bytes": None}}, 0)
    with process(tmp_path) as running:
        for message, answered in (
            (create(2, "k"), (2, {"result": {"made": True}}, b"")),
            (create(3, "k"), (3, {"result": {"made": False}}, b"")),
            (read, (2**40, {"result": {"found": True}}, BLOB)),
        ):
            for at in range(0, len(message), piece_bytes):
                running.socket.sendall(message[at : at + piece_bytes])
            assert running.answer() == answered


@pytest.mark.parametrize("blob", [b"", BLOB], ids=["without bytes", "with bytes"])
def test_a_message_that_is_cut_off_anywhere_is_not_carried_out_and_the_process_ends_in_peace(
    tmp_path: Path, blob: bytes
) -> None:
    text = json.dumps({"call": "create", "arguments": {"key": "k"}}).encode()
    message = HEAD.pack(2, len(text), len(blob)) + text + blob
    cuts = [0, 1, HEAD.size, HEAD.size + 1, len(message) - 1]
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(process(tmp_path)) for _ in cuts]
        for each, cut in zip(running, cuts, strict=True):
            each.socket.sendall(message[:cut])
            each.socket.shutdown(socket.SHUT_WR)
        assert [each.ended() for each in running] == [(0, b"")] * len(cuts)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
