"""`danube` and evals/bin/scene without their imports: a server that has done them forks for each call.

A start of the command costs half a second of processor, nearly all of it imports; here it costs a few hundredths, and what
runs is the same. `with warm_commands(folder) as path` puts both programs into `folder`, for the front of PATH.
"""

from __future__ import annotations

import array
import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

ROOT: Final = Path(__file__).resolve().parents[2]
SCENE: Final = ROOT / "evals" / "bin" / "scene"
#: passes on what a process has, and ends as the forked one does
_CALLER: Final = f"""#!{sys.executable} -SE
import array, json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({{address!r}})
    call = json.dumps([{{program!r}}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    files = array.array("i", [0, 1, 2])
    server.sendmsg([len(call).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    server.sendall(call)
    status = server.recv(1)
sys.exit(status[0] if status else "the forked command died")
"""


@contextlib.contextmanager
def warm_commands(folder: Path) -> Iterator[Path]:
    """Put `danube` and `scene` into the folder, and serve them until the end."""
    address = folder / "warm.sock"
    for program in ("danube", "scene"):
        file = folder / program
        file.write_text(_CALLER.format(address=str(address), program=program))
        file.chmod(0o755)
    command = [sys.executable, "-m", "tests.support.warm_commands", str(address)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.read(1) == b"."
            yield folder
        finally:
            server.terminate()


def _serve(address: str) -> NoReturn:
    import pydanube.sync  # noqa: F401  # of scene
    import pydanube_cli.main as cli
    import pydanube_cli.operations  # noqa: F401

    with contextlib.redirect_stdout(io.StringIO()):
        cli.run(["topics", "list", "--help"])  # imports what operations need
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(1, b".")
        while True:
            caller, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _answer(caller)
            caller.close()
            with contextlib.suppress(ChildProcessError):  # the ended ones: so their processor time is counted
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _answer(caller: socket.socket) -> NoReturn:
    files = array.array("i")
    head, ancillary, _, _ = caller.recvmsg(4, socket.CMSG_LEN(3 * files.itemsize))
    files.frombytes(ancillary[0][2])
    call = b""
    while len(call) < int.from_bytes(head, "big"):
        call += caller.recv(65536)
    program, arguments, folder, environment = json.loads(call)
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    status = 1
    try:
        status = _run(program, arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    caller.send(bytes([status & 255]))
    os._exit(0)


def _run(program: str, arguments: list[str]) -> Any:
    if program == "danube":
        from pydanube_cli.main import run

        return run(arguments)
    import runpy

    sys.argv = [str(SCENE), *arguments]
    runpy.run_path(str(SCENE), run_name="__main__")
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
