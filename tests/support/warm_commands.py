"""`danube`, evals/bin/scene and a broker's helpers without their imports: a server that has done them forks for each call.

A start of the command costs half a second of processor, one of a broker more than a second, one of its tier's process half a
second and one of a journal's helper 20 ms, nearly all of it imports. Here they cost a few milliseconds to a few hundredths,
and the code that runs is the same.

    with warm_commands(folder) as path: …      both programs are in `folder`, for the front of PATH
    put_commands(folder)                       the same, as long as all tests of this process
    server_for(environment)                    the server of all tests of a process, or None: then the start is cold
    fork_helpers()                             brokers of this process fork their helpers, from a server for each kind

Only tests fork (tests/conftest.py sets `forking`): a benchmark measures the start that a user has. The server's imports have read
its environment, so a process whose environment differs in more than variables of danube starts cold.

The server has a session of its own: Ctrl-C goes to pytest alone, which ends its brokers. When pytest has ended, the server kills
all that it forked and ends too.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib.util
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[2]
SCENE: Final = ROOT / "evals" / "bin" / "scene"
DANUBE: Final = Path(sys.executable).with_name("danube")
#: whether `server_for` returns a server. tests/conftest.py sets it
forking = False
_ENVIRONMENT: Final = dict(os.environ)  # before a test changes it
#: how variables begin that no import of the product reads: its own, then those that pytest, Spark and the product itself set
_READ_LATE: Final = (
    *("DANUBE_", "PYDANUBE_TEST_", "NO_COLOR", "TERM"),
    *("PYTEST_", "TEXTUAL_", "SPARK_", "PYSPARK_", "OPENBLAS_NUM_THREADS", "GCSFS_EXPERIMENTAL_"),
)
#: in the environment of a broker and all that it starts
MARK: Final = "PYDANUBE_TEST_MARK"
_SERVERS: Final = "PYDANUBE_TEST_SERVERS"  # JSON: the servers from which a forked broker forks its helpers
#: a helper's program, as it is called in the command line of its server → the module that starts it
_HELPERS: Final = {
    "tier": "pydanube_broker.tier.child",
    "sync_program.py": "pydanube_broker.journal.helper",
}
_CALL_DEADLINE_S: Final = 30.0  # for a caller to send its call, because other callers wait until then
_NUMBER: Final = 8  # bytes of a number in an answer: the process id, then its status
_INT: Final = 4  # bytes of each number in SO_PEERCRED: process, user, group
#: passes on what a process has, and ends as the forked one does
_CALLER: Final = f"""#!{sys.executable} -SE
import array, json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({{address!r}})
    call = json.dumps([{{program!r}}, sys.argv[1:], os.getcwd(), dict(os.environ), False, True]).encode()
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
        self._waiting = threading.Lock()
        # The server sends its handle, because the process may have been reaped already.
        said, handles, _, _ = socket.recv_fds(answers, _NUMBER, 1, socket.MSG_CMSG_CLOEXEC)
        assert len(said) == _NUMBER, "the server of warm commands died"
        self.pid = int.from_bytes(said, "big", signed=True)
        (self._handle,) = handles
        weakref.finalize(self, os.close, self._handle)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. If the server has died, the exit code is lost, and -9 is returned."""
        until = None if timeout is None else time.monotonic() + timeout
        if not self._waiting.acquire(timeout=-1 if timeout is None else timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        with contextlib.ExitStack() as stack:
            stack.callback(self._waiting.release)
            if self.returncode is None:
                self._until_readable(self._answers, until)
                said = self._answers.recv(_NUMBER, socket.MSG_WAITALL)
                if len(said) < _NUMBER:
                    self._until_readable(self._handle, until)
                    said = (-signal.SIGKILL).to_bytes(_NUMBER, "big", signed=True)
                self.returncode = int.from_bytes(said, "big", signed=True)
                self._answers.close()
            return self.returncode

    def _until_readable(self, file: int | socket.socket, until: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            left = None if until is None else max(0.0, until - time.monotonic())
            if not selector.select(left):
                raise subprocess.TimeoutExpired(self.args, left or 0.0)

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

    def __init__(self, program: str = "danube", environment: Mapping[str, str] | None = None) -> None:
        # In the abstract namespace: the path of a file may be at most 107 bytes long.
        self.name = f"pydanube-{uuid.uuid4().hex}"
        self.address = f"\0{self.name}"
        command = [sys.executable, "-m", "tests.support.warm_commands", self.name, program]
        # With more threads than one a fork is not safe.
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**(environment or {}), **_ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        with self.process.stdout:
            assert self.process.stdout.read(1) == b"."

    def start(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        new_session: bool = False,
        quick_end: bool = False,
    ) -> ForkedProcess:
        """Fork a `danube WORDS` with these three open files.

        Args:
            stdout: `subprocess.PIPE` makes a pipe.
            quick_end: end without freeing each object, which takes longer than a short command.
        """
        if words[0] in ("up", "broker"):
            names = {program: _helper_server(program).name for program in _HELPERS}
            environment = {**environment, _SERVERS: json.dumps(names)}
        call = ["danube", list(words), os.getcwd(), dict(environment), new_session, quick_end]
        reading = None
        if piped := stdout == subprocess.PIPE:
            read, stdout = os.pipe()
            reading = os.fdopen(read, "rb", buffering=0)
        try:
            return _call(self.address, call, [stdin, stdout, stderr], reading)
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
                quick_end=True,
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
        """End the server, and kill the processes it forked that still run."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@functools.cache
def can_fork() -> bool:
    """Tell whether this system has handles of processes: not every Linux has, nor every sandbox."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _call(
    address: str, call: Sequence[Any], files: Sequence[int], reading: IO[bytes] | None = None
) -> ForkedProcess:
    text = json.dumps(call).encode()
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address)
        socket.send_fds(server, [len(text).to_bytes(4, "big")], list(files))
        server.sendall(text)
        return ForkedProcess(call[1], server, reading)
    except BaseException:
        server.close()
        raise


@functools.cache
def _server() -> WarmServer:
    server = WarmServer()
    atexit.register(server.close)
    return server


@functools.cache
def _helper_server(program: str) -> WarmServer:
    environment = {}
    if program == "tier":
        from pydanube_broker.tier.child import ALLOCATION

        # A fork is not safe beside the thread in which pyarrow's jemalloc, which the tier does not use, returns memory.
        environment = {**ALLOCATION, "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    server = WarmServer(program, environment)
    atexit.register(server.close)
    return server


def fork_helpers(servers: Mapping[str, str] | None = None) -> None:
    """Let brokers of this process fork their helpers, from the servers of these names or from some that the first starts."""
    for program, module in _HELPERS.items():
        _fork_helper(program, importlib.import_module(module), (servers or {}).get(program))


def _fork_helper(program: str, module: Any, name: str | None) -> None:
    cold = module.spawn

    def spawn(theirs: socket.socket) -> Any:
        environment = dict(os.environ)
        if not forking or not can_fork() or not _same_imports(environment):
            return cold(theirs)
        address = f"\0{name}" if name else _helper_server(program).address
        with open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), 1, 2, theirs.fileno()]
            return _call(address, [program, [], os.getcwd(), environment, True, True], files)

    module.spawn = spawn


def server_for(environment: Mapping[str, str]) -> WarmServer | None:
    """Return the server of this process, started by the first call. None if it must be a cold start."""
    if not forking or not can_fork():
        return None
    return _server() if _same_imports(environment) else None


def _same_imports(environment: Mapping[str, str]) -> bool:
    from pydanube_core.secrets import known_secrets

    # Secrets of the environment are read by an import.
    differing = dict(environment.items() ^ _ENVIRONMENT.items())
    return all(name.startswith(_READ_LATE) for name in differing) and not known_secrets(environment)


def start_danube(
    words: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start `danube WORDS`, forked where that can be, with stdout and stderr in a file."""
    with open(os.devnull, "rb") as nothing:
        if (server := server_for(environment)) is not None:
            file = output.fileno()
            return server.start(
                words, environment=environment, stdin=nothing.fileno(), stdout=file, stderr=file
            )
        command = [sys.executable, "-m", "pydanube_cli.main", *words]
        return subprocess.Popen(command, stdin=nothing, stdout=output, stderr=output, env=environment)


@contextlib.contextmanager
def warm_commands(folder: Path) -> Iterator[Path]:
    """Put `danube` and `scene` into the folder, and serve them until the end."""
    if not can_fork():
        (folder / "danube").symlink_to(DANUBE)
        (folder / "scene").symlink_to(SCENE)
        yield folder
        return
    server = WarmServer()
    _put_callers(folder, server)
    try:
        yield folder
    finally:
        server.close()


def put_commands(folder: Path) -> None:
    """Put `danube` and `scene` into the folder, served by the server of all tests of this process."""
    if not forking or not can_fork():
        (folder / "danube").symlink_to(DANUBE)
        (folder / "scene").symlink_to(SCENE)
        return
    _put_callers(folder, _server())


def _put_callers(folder: Path, server: WarmServer) -> None:
    for program in ("danube", "scene"):
        file = folder / program
        file.write_text(_CALLER.format(address=server.address, program=program))
        file.chmod(0o755)


@functools.cache
def _sync_program() -> Any:
    """Load the program as a broker starts it: by its path, without the package."""
    path = ROOT / "broker" / "pydanube_broker" / "journal" / "sync_program.py"
    spec = importlib.util.spec_from_file_location("sync_program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import_tier() -> None:
    from pydanube_broker.tier.process import hide_pandas

    hide_pandas()
    import pydanube_broker.tier.chain_calls
    import pydanube_broker.tier.work  # noqa: F401


def _import_danube() -> None:
    import pydanube.sync  # noqa: F401  # of scene
    import pydanube_cli.composition
    import pydanube_cli.main as cli
    import pydanube_cli.operations
    import pydanube_cli.serve  # noqa: F401

    with contextlib.redirect_stdout(io.StringIO()):
        cli.run(["topics", "list", "--help"])  # imports what operations need


_IMPORTS: Final[Mapping[str, Callable[[], object]]] = {
    "danube": _import_danube,
    "tier": _import_tier,
    "sync_program.py": _sync_program,
}


def _serve(name: str) -> tuple[list[Any], list[int]]:
    """Fork for each call, until stdin ends. Returns in each forked process, with its call and its open files."""
    # The collector of a forked process leaves these objects alone, so their memory stays shared.
    gc.collect()
    gc.freeze()
    callers: dict[int, tuple[int, socket.socket]] = {}  # by the handle of the forked process
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as selector:
        listening.bind(f"\0{name}")
        listening.listen(64)
        selector.register(listening, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        os.write(1, b".")
        while True:
            for key, _ in selector.select():
                if key.fd == 0:
                    for handle in callers:
                        with contextlib.suppress(ProcessLookupError):
                            signal.pidfd_send_signal(handle, signal.SIGKILL)
                    os._exit(0)
                if key.fd == listening.fileno():
                    caller, _ = listening.accept()
                    if (received := _read(caller)) is None:
                        caller.close()
                        continue
                    assert len(os.listdir("/proc/self/task")) == 1, "a fork beside a thread is not safe"
                    pid = os.fork()
                    if pid == 0:
                        for other in (caller, *(each for _, each in callers.values())):
                            other.close()
                        for handle in callers:
                            os.close(handle)
                        return received
                    for file in received[1]:
                        os.close(file)
                    handle = os.pidfd_open(pid)
                    selector.register(handle, selectors.EVENT_READ)
                    callers[handle] = (pid, caller)
                    _answer(caller, pid, handle)
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                pid, caller = callers.pop(key.fd)
                _, status = os.waitpid(pid, 0)
                _answer(caller, os.waitstatus_to_exitcode(status))
                caller.close()


def _answer(caller: socket.socket, number: int, *handles: int) -> None:
    with contextlib.suppress(OSError):  # it has ended
        socket.send_fds(caller, [number.to_bytes(_NUMBER, "big", signed=True)], handles)


def _read(caller: socket.socket) -> tuple[list[Any], list[int]] | None:
    """Return a call and its open files. None if the caller is another user, or ended within the call."""
    caller.settimeout(_CALL_DEADLINE_S)
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * _INT)
    if int.from_bytes(credentials[_INT : 2 * _INT], sys.byteorder) != os.getuid():
        return None
    files: list[int] = []
    try:
        head, files, _, _ = socket.recv_fds(caller, 4, 4, socket.MSG_CMSG_CLOEXEC)
        call = b""
        while len(call) < int.from_bytes(head, "big") and (part := caller.recv(65536)):
            call += part
        if len(files) >= 3 and len(call) == int.from_bytes(head, "big"):
            return json.loads(call), files
    except OSError:
        pass
    for file in files:
        os.close(file)
    return None


def _run(call: list[Any], files: list[int]) -> int:
    program, arguments, folder, environment, new_session, quick_end = call
    for place, file in enumerate(files[:3]):
        os.dup2(file, place)
        os.close(file)
    if new_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if program in _HELPERS:
        _help(program, files[3], environment.get(MARK, program))
    if servers := environment.get(_SERVERS):
        global forking
        forking = True
        fork_helpers(json.loads(servers))
    sys.argv = [str(SCENE if program == "scene" else DANUBE), *arguments]
    if not quick_end:
        return _program(program, arguments)
    status = 1
    try:
        status = _program(program, arguments)
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]  # as at an ordinary end, coverage writes its file next
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 255)


def _help(program: str, descriptor: int, mark: str) -> NoReturn:
    # BrokerProcess.helpers looks for the name: what /proc has of the environment is the server's.
    Path("/proc/self/comm").write_text(mark[:15])
    try:
        if program == "tier":
            from pydanube_broker.tier import process

            process.main(descriptor)
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with contextlib.suppress(ConnectionError, BrokenPipeError):
                _sync_program().main(descriptor)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _program(program: str, arguments: list[str]) -> int:
    if program == "danube":
        from pydanube_cli.main import run

        return run(arguments)
    import runpy

    runpy.run_path(str(SCENE), run_name="__main__")
    return 0


if __name__ == "__main__":
    _IMPORTS[sys.argv[2]]()
    sys.exit(_run(*_serve(sys.argv[1])))
