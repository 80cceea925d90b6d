"""The tier's process: started by the broker with one socket, ended by its end of file.

    python -m pydanube_broker.tier.process <descriptor>

The first message is `{options: StoreOptions}`. Each later one is `{call, arguments}` and gets one answer with its
number: `{result}` or `{error}`.

Consumers and producers come before the tier: the process gives way while it writes, less while a backlog grows, and not
while a consumer waits for it. That takes two settings, because either alone may have no effect. Linux assigns nice
values to threads, and the threads that write are niced. If Linux groups processes by session (`sched_autogroup`,
usual outside of containers), it first divides the processor between sessions by the nice value of the session,
`/proc/self/autogroup`. Any user may raise and lower that value from 0 up. The session has the value of its least
patient call, also for `_LINGER_S` after it, because the kernel accepts a change only every 100 ms. On other systems the
first thread that writes nices the process, for good.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from pydanube_core.errors import ClusterError, Internal

from pydanube_broker.tier.messages import HEAD, encode_message

READING: Final = 0  # a consumer waits
URGENT: Final = 4  # a long backlog takes its share, so that it does not grow without bound
WRITING: Final = 19  # producers and consumers come first: 1/70 of their processor time, or the idle time
_LINGER_S: Final = 1.0
_FILE: Final = Path("/proc/self/autogroup")


def nice_thread(value: int) -> None:
    """Lower the priority of the calling thread (Linux) or the process, for good: raising it again takes privileges."""
    who = threading.get_native_id() if sys.platform == "linux" else 0
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, who) < value:
            os.setpriority(os.PRIO_PROCESS, who, value)


def nice_of(body: Mapping[str, Any]) -> int:
    """Return a call's nice value. For an `awaited` call, consumers or producers wait."""
    if body["call"] in _READS or body["arguments"].get("awaited"):
        return READING
    return URGENT if body["arguments"].get("urgent") else WRITING


class Session:
    """`with session.at(value)` around each call, from any thread."""

    def __init__(self, file: Path = _FILE, *, linger_s: float = _LINGER_S) -> None:
        self._file = file
        self._linger_s = linger_s
        self._changed = threading.Condition()
        self._active: Counter[int] = Counter()
        self._last_s: dict[int, float] = {}  # when a call of that value ended
        self._shown: int | None = None
        self.idle = WRITING  # the priority without a call
        if file.exists():
            threading.Thread(target=self._follow, name="tier-priority", daemon=True).start()

    @contextlib.contextmanager
    def at(self, value: int) -> Iterator[None]:
        with self._changed:
            self._active[value] += 1
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._active[value] -= 1
                self._last_s[value] = time.monotonic()

    def _wanted(self, now_s: float) -> int:
        recent = (value for value, at_s in self._last_s.items() if now_s - at_s < self._linger_s)
        active = (value for value, count in self._active.items() if count)
        return min((*active, *recent, self.idle))

    def _follow(self) -> None:
        while True:
            with self._changed:
                wanted = self._wanted(time.monotonic())
                if wanted == self._shown:
                    self._changed.wait(self._linger_s if wanted < WRITING else None)
                    continue
            try:
                self._file.write_text(str(wanted))
                self._shown = wanted
            except BlockingIOError:
                time.sleep(self._linger_s / 8)  # another process was first within 100 ms
            except OSError:
                return


_READS: Final = (  # a consumer waits, or a start
    "read", "time", "when", "facts", "owner_newest", "owner_make", "store_identity",
)  # fmt: skip


class _NoPandas:
    """Hides pandas, if installed, from pyarrow, which would import it for the types of its first column.

    The import takes a second of the processor and 40 MB, and the tier does not need it.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the tier has no use for pandas", name=name)


def hide_pandas() -> None:
    """Let pyarrow find no pandas, if it is imported after this."""
    sys.meta_path.insert(0, _NoPandas)


def main(descriptor: int) -> None:
    """Serve the broker at this socket, until it is gone."""
    hide_pandas()
    with socket.socket(fileno=descriptor) as sock:
        _Server(sock).run()


class _Server:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._write = threading.Lock()
        self._pools = {
            READING: ThreadPoolExecutor(2, thread_name_prefix="tier-read"),
            URGENT: ThreadPoolExecutor(2, "tier-urgent", nice_thread, (URGENT,)),
            WRITING: ThreadPoolExecutor(2, "tier-write", nice_thread, (WRITING,)),
        }
        self._session = Session()
        self._calls: Any = None

    def run(self) -> None:
        """Serve until the broker is gone. Work under way is then abandoned, as by a crash."""
        while (message := self._receive()) is not None:
            number, body, blob = message
            if self._calls is None:
                with self._session.at(READING):  # the first call waits for pyarrow as well
                    self._open(number, body)
                continue
            nice = nice_of(body)
            self._pools[nice].submit(self._serve, nice, number, body, blob)
        os._exit(0)

    def _open(self, number: int, body: dict[str, Any]) -> None:
        try:
            from pydanube_storage.objects import StoreOptions, open_store

            if body["work"] == "chain":
                from pydanube_broker.tier.chain_calls import THREADS, ChainWork

                self._pools[READING] = ThreadPoolExecutor(THREADS, thread_name_prefix="chain")
                self._session.idle = READING  # raising it takes 100 ms, for which the first piece would wait
                self._calls = ChainWork(open_store(StoreOptions(**body["options"]))).calls()
                self._answer(number, {"result": {"pid": os.getpid()}})
                return
            import pyarrow as pa

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
