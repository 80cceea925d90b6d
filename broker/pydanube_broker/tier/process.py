"""The tier's process: started by the broker with one socket, ended by its end of file.

    python -m pydanube_broker.tier.process <descriptor>

The first message is `{options: StoreOptions}`; each that follows is `{call, arguments}` and gets one answer with its
number: `{result}` or `{error}`. Consumers and producers come before the tier: `priority` says how far.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from pydanube_core.errors import ClusterError, Internal

from pydanube_broker.tier.messages import HEAD, encode_message
from pydanube_broker.tier.priority import READING, URGENT, WRITING, Session, nice_thread

_READS: Final = (  # a consumer waits, or a start
    "read", "time", "when", "facts", "owner_newest", "owner_make", "store_identity",
)  # fmt: skip


class _NoPandas:
    """pyarrow imports pandas at its first column, where that is installed, to know its types: a second of the processor
    and 40 MB, for nothing that is done here."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the tier has no use for pandas", name=name)


def main(descriptor: int) -> None:
    sys.meta_path.insert(0, _NoPandas)
    with socket.socket(fileno=descriptor) as sock:
        _Server(sock).run()


class _Server:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._write = threading.Lock()
        self._reads = ThreadPoolExecutor(2, thread_name_prefix="tier-read")
        self._writes = ThreadPoolExecutor(2, "tier-write", nice_thread, (WRITING,))
        self._urgent = ThreadPoolExecutor(2, "tier-urgent", nice_thread, (URGENT,))
        self._session = Session()
        self._calls: Any = None

    def run(self) -> None:
        """Serve until the broker is gone; what is under way then is abandoned, like by a crash."""
        while (message := self._receive()) is not None:
            number, body, blob = message
            if self._calls is None:
                with self._session.at(READING):  # whoever asked first waits for pyarrow as well
                    self._open(number, body)
                continue
            pool, nice = self._pool(body)
            pool.submit(self._serve, nice, number, body, blob)
        os._exit(0)

    def _pool(self, body: dict[str, Any]) -> tuple[ThreadPoolExecutor, int]:
        if body["call"] in _READS:
            return self._reads, READING
        return (self._urgent, URGENT) if body["arguments"].get("urgent") else (self._writes, WRITING)

    def _open(self, number: int, body: dict[str, Any]) -> None:
        try:
            import pyarrow as pa
            from pydanube_storage.objects import StoreOptions, open_store

            from pydanube_broker.tier.work import TierWork

            pa.set_cpu_count(1)
            pa.set_io_thread_count(1)
            self._calls = TierWork(open_store(StoreOptions(**body["options"]))).calls()
        except ClusterError as error:
            self._answer(number, {"error": error.to_dict()})
        except Exception as error:
            self._answer(number, {"error": Internal(f"the tier's process cannot start: {error!r}").to_dict()})
        else:
            self._answer(number, {"result": {"pid": os.getpid()}})

    def _serve(self, nice: int, number: int, body: dict[str, Any], blob: bytes) -> None:
        try:
            with self._session.at(nice):
                result, data = self._calls[body["call"]](body["arguments"], blob)
        except ClusterError as error:
            self._answer(number, {"error": error.to_dict()})
        except Exception as error:
            logging.getLogger("pydanube.tier").exception("tier_call_failed")
            self._answer(
                number, {"error": Internal(f"the tier failed at {body['call']}: {error!r}").to_dict()}
            )
        else:
            self._answer(number, {"result": result}, data)

    def _answer(self, number: int, body: dict[str, Any], blob: bytes = b"") -> None:
        with self._write, contextlib.suppress(OSError):  # the broker is gone: `run` ends
            self._sock.sendall(encode_message(number, body, len(blob)))
            self._sock.sendall(blob)

    def _receive(self) -> tuple[int, dict[str, Any], bytes] | None:
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        number, text_bytes, blob_bytes = HEAD.unpack(head)
        text, blob = self._exactly(text_bytes), self._exactly(blob_bytes)
        if text is None or blob is None:
            return None
        return number, json.loads(text), blob

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            try:
                got = self._sock.recv_into(view[at:])
            except OSError:
                got = 0
            if not got:
                return None
            at += got
        return bytes(data)


if __name__ == "__main__":
    main(int(sys.argv[1]))
