"""`danube` and evals/bin/scene without their imports: a server that has done them forks for each call.

A start of the command costs half a second of processor and one of a broker more than a second, nearly all of it imports. Here
it costs a few hundredths, and the code that runs is the same.

    with warm_commands(folder) as path: …      both programs are in `folder`, for the front of PATH
    warm_server().start(["up", …], …)          a process like that of `subprocess.Popen`; one server for all tests of a process
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SCENE: Final = ROOT / "evals" / "bin" / "scene"
_NUMBER: Final = 8  # bytes of a number in an answer: the process id, then its status
#: passes on what a process has, and ends as the forked one does
_CALLER: Final = f"""#!{sys.executable} -SE
import array, json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({{address!r}})
    call = json.dumps([{{program!r}}, sys.argv[1:], os.getcwd(), dict(os.environ), False]).encode()
    files = array.array("i", [0, 1, 2])
    server.sendmsg([len(call).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    server.sendall(call)
    answer = b"."
    said = b""
    while answer and len(said) < 2 * {_NUMBER}:
        said += (answer := server.recv(2 * {_NUMBER} - len(said)))
if len(said) < 2 * {_NUMBER}:
    sys.exit("the server of warm commands died")
status = int.from_bytes(said[{_NUMBER}:], "big", signed=True)
sys.exit(status if status >= 0 else 128 - status)
"""


class ForkedProcess:
    """A process that the server forked: what the tests use of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], answers: socket.socket, stdout: IO[bytes] | None) -> None:
        self.args = list(words)
        self.stdout = stdout
        self.returncode: int | None = None
        self._answers = answers
        self.pid = self._number()
        self._handle = os.pidfd_open(self.pid)

    def _number(self) -> int:
        said = b""
        while len(said) < _NUMBER:
            part = self._answers.recv(_NUMBER - len(said))
            assert part, "the server of warm commands died"
            said += part
        return int.from_bytes(said, "big", signed=True)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._answers, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._number()
            self._answers.close()
            os.close(self._handle)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def until_stopped(self, deadline_s: float = 60.0) -> None:
        """Wait until none of its threads runs, after a SIGSTOP."""
        until = time.monotonic() + deadline_s
        while not all(
            state == "T"
            for task in Path(f"/proc/{self.pid}/task").iterdir()
            for state in (task / "stat").read_text().rpartition(")")[2].split()[:1]
        ):
            assert time.monotonic() < until, "a thread still runs"
            time.sleep(0.001)


class WarmServer:
    """The server's process, and calls to it."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "warm.sock")
        command = [sys.executable, "-m", "tests.support.warm_commands", self.address]
        # With more threads than one a fork is not safe.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        with self._process.stdout:
            assert self._process.stdout.read(1) == b"."

    def start(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        new_session: bool = False,
    ) -> ForkedProcess:
        """Fork a `danube WORDS` with these three open files. `stdout`: `subprocess.PIPE` makes a pipe."""
        call = json.dumps(["danube", list(words), os.getcwd(), dict(environment), new_session]).encode()
        reading = None
        if piped := stdout == subprocess.PIPE:
            read, stdout = os.pipe()
            reading = os.fdopen(read, "rb", buffering=0)
        try:
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.address)
            files = array.array("i", [stdin, stdout, stderr])
            server.sendmsg([len(call).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
            server.sendall(call)
            return ForkedProcess(words, server, reading)
        finally:
            if piped:
                os.close(stdout)

    def run(
        self, words: Sequence[str], *, environment: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `danube WORDS` to its end, as `subprocess.run` does. Raises `TimeoutExpired`, and kills it then."""
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin)
            given.seek(0)
            process = self.start(
                words,
                environment=environment,
                stdin=given.fileno(),
                stdout=out.fileno(),
                stderr=err.fileno(),
            )
            try:
                code = process.wait(timeout_s)
            except BaseException:
                process.kill()
                process.wait()
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(process.args, code, out.read(), err.read())

    def close(self) -> None:
        """End the server. What it forked goes on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def warm_server() -> WarmServer:
    """Return the server of this process, started by the first call."""
    folder = tempfile.TemporaryDirectory(prefix="warm-", ignore_cleanup_errors=True)
    server = WarmServer(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(server.close)
    return server


def start_danube(
    words: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start `danube WORDS`, forked where that can be, with stdout and stderr in a file."""
    with open(os.devnull, "rb") as nothing:
        if sys.platform == "linux":
            file = output.fileno()
            return warm_server().start(
                words, environment=environment, stdin=nothing.fileno(), stdout=file, stderr=file
            )
        command = [sys.executable, "-m", "pydanube_cli.main", *words]
        return subprocess.Popen(command, stdin=nothing, stdout=output, stderr=output, env=environment)


@contextlib.contextmanager
def warm_commands(folder: Path) -> Iterator[Path]:
    """Put `danube` and `scene` into the folder, and serve them until the end."""
    server = WarmServer(folder)
    for program in ("danube", "scene"):
        file = folder / program
        file.write_text(_CALLER.format(address=server.address, program=program))
        file.chmod(0o755)
    try:
        yield folder
    finally:
        server.close()


def _serve(address: str) -> tuple[list[Any], array.array[int]]:
    """Fork for each call, until stdin ends. Returns in each forked process, with its call and its open files."""
    import pydanube.sync  # noqa: F401  # of scene
    import pydanube_cli.composition
    import pydanube_cli.main as cli
    import pydanube_cli.operations
    import pydanube_cli.serve  # noqa: F401

    with contextlib.redirect_stdout(io.StringIO()):
        cli.run(["topics", "list", "--help"])  # imports what operations need
    callers: dict[int, tuple[int, socket.socket]] = {}  # by the handle of the forked process
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as selector:
        listening.bind(address)
        listening.listen(64)
        selector.register(listening, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        os.write(1, b".")
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    os._exit(0)
                if key.fd == listening.fileno():
                    caller, _ = listening.accept()
                    call, files = _read(caller)
                    pid = os.fork()
                    if pid == 0:
                        for other in (caller, *(each for _, each in callers.values())):
                            other.close()
                        for handle in callers:
                            os.close(handle)
                        return call, files
                    for file in files:
                        os.close(file)
                    handle = os.pidfd_open(pid)
                    selector.register(handle, selectors.EVENT_READ)
                    callers[handle] = (pid, caller)
                    _answer(caller, pid)
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                pid, caller = callers.pop(key.fd)
                _, status = os.waitpid(pid, 0)
                _answer(caller, os.waitstatus_to_exitcode(status))
                caller.close()


def _answer(caller: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        caller.sendall(number.to_bytes(_NUMBER, "big", signed=True))


def _read(caller: socket.socket) -> tuple[list[Any], array.array[int]]:
    files = array.array("i")
    head, ancillary, _, _ = caller.recvmsg(4, socket.CMSG_LEN(3 * files.itemsize))
    files.frombytes(ancillary[0][2])
    call = b""
    while len(call) < int.from_bytes(head, "big"):
        call += caller.recv(65536)
    return json.loads(call), files


def _run(call: list[Any], files: array.array[int]) -> int:
    program, arguments, folder, environment, new_session = call
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    if new_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [str(SCENE if program == "scene" else Path(sys.executable).with_name("danube")), *arguments]
    if program == "danube":
        from pydanube_cli.main import run

        return run(arguments)
    import runpy

    runpy.run_path(str(SCENE), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(_run(*_serve(sys.argv[1])))
