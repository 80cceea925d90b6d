"""Make or mend .venv, or .venv-spark. Called by tools/bootstrap, which has found the interpreter; standard library only.

.venv-spark adds PySpark to .venv: it is half a gigabyte, which pip builds for minutes, and only tests/spark and the types of
pydanube_spark need it. A .pth file in it names the packages of .venv, so that nothing else is installed twice.

States of the environment, by the files in it:

- `.stamp-LEVEL` holds what the level was made from (checksum of pyproject.toml, place of the clone). It is removed
  before anything is changed and written last, so a stamp that matches means a finished environment.
- `.installing` exists while an installer runs. Found at the start it means that one was killed half-way: packages
  may be torn, so the environment is made anew. An installer that failed by itself has tidied up after itself.
- neither: an environment of another time or made by hand; it is kept and installed into.

One lock (`.tools/environment.lock`) lets `make run` and `make test` start together.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / (".venv-spark" if sys.argv[1:2] == ["spark"] else ".venv")
PYTHON: Final = VENV / "bin" / "python"
INSTALLING: Final = VENV / ".installing"
TOOLS: Final = ROOT / ".tools"
LOG: Final = TOOLS / "install.log"

# run: the broker and each command that the README shows.
EXTRAS: Final = {"run": "broker,mcp,tui,cluster,security", "dev": "dev", "spark": "spark"}
# The compiler of the protos, in dev, needs protobuf 6. Without this `make test` would take version 7 away from
# under a broker that `make run` has started.
ALSO: Final = ("protobuf<7",)
# A level also satisfies the levels listed: dev holds what run has.
SATISFIES: Final = {"run": ("run",), "dev": ("dev", "run"), "spark": ("spark",)}
# Settings of the user's which would send packages elsewhere than into .venv. Mirrors and certificates stay.
UNWANTED: Final = (
    "PIP_USER",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_NO_DEPS",
)
HEARTBEAT_S: Final = 5.0
WAITED_S: Final = 30  # between two lines of a command that waits for another one
LOOK_S: Final = 0.2


class InstallFailedError(Exception):
    """An installer ended with an error; the message holds the end of its output."""


def say(text: str) -> None:
    print(f"pydanube: {text}", file=sys.stderr, flush=True)


def stamp_path(level: str) -> Path:
    return VENV / f".stamp-{level}"


def is_current(level: str, stamp: str) -> bool:
    try:
        return stamp_path(level).read_text(encoding="utf-8").strip() == stamp and PYTHON.exists()
    except OSError:
        return False


@contextmanager
def locked() -> Iterator[int]:
    """Hold the lock of the environment, and say so when it has to wait.

    Yields its descriptor, which installers inherit: if we are killed, the lock lasts until they have ended too.
    """
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "environment.lock").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another command is making the environment, waiting for it; its output is in {LOG}")
            wait_for_lock(file.fileno())
        yield file.fileno()


def wait_for_lock(lock: int) -> None:
    """Take a lock that another process holds, and say every `WAITED_S` that this one still waits."""
    started = time.monotonic()
    said = 1
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_S)
        else:
            return
        if time.monotonic() - started >= said * WAITED_S:
            say(f"waiting for the other command: {said * WAITED_S} s")
            said += 1


def run(command: Sequence[str | Path], *, doing: str, lock: int) -> None:
    """Run an installer with its output in LOG, and say every few seconds how far it has come.

    Raises:
        InstallFailedError: it ended with an error.
    """
    environ = {name: value for name, value in os.environ.items() if name not in UNWANTED}
    environ |= {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONUNBUFFERED": "1",
        "VIRTUAL_ENV": str(VENV),
    }
    started = time.monotonic()
    with LOG.open("wb") as log:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),
        )
        while True:
            try:
                status = child.wait(timeout=HEARTBEAT_S)
                break
            except subprocess.TimeoutExpired:
                last = (lines() or [""])[-1].strip()
                say(f"{doing}: {time.monotonic() - started:.0f} s, {last[:90] or 'working'}")
            except BaseException:
                child.kill()
                child.wait()
                raise
    if status != 0:
        tail = "\n".join(f"  | {line}" for line in lines()[-15:])
        raise InstallFailedError(f"{doing} failed with status {status}; the end of {LOG}:\n{tail}")


def lines() -> list[str]:
    return LOG.read_text(encoding="utf-8", errors="replace").splitlines()


def works() -> bool:
    """Whether .venv holds an interpreter of a version we can use, at this place."""
    probe = (
        "import sys, os; "
        "sys.exit(sys.version_info < (3, 11) or not os.path.samefile(sys.prefix, sys.argv[1]) or sys.prefix == sys.base_prefix)"
    )
    try:
        return (
            subprocess.run([PYTHON, "-I", "-c", probe, VENV], capture_output=True, check=False).returncode
            == 0
        )
    except OSError:
        return False


def was_moved() -> bool:
    """Whether the programs in .venv/bin start an interpreter elsewhere: the clone was moved or copied."""
    program = VENV / "bin" / "danube"
    try:
        with program.open("rb") as file:
            first = file.readline().decode(errors="replace").strip()
    except OSError:
        return False
    return first.startswith("#!/") and not first.startswith(("#!/bin/sh", f"#!{VENV}/"))


def remove_unsound() -> None:
    """Delete .venv if it cannot be mended by installing into it."""
    if not VENV.exists() and not VENV.is_symlink():
        return
    if INSTALLING.exists():
        say(f"the last installation was interrupted, making {VENV.name} anew")
    elif not works():
        say(f"{VENV.name} does not work, making it anew")
    elif was_moved():
        say(f"this clone was moved, making {VENV.name} anew")
    else:
        return
    if VENV.is_symlink():
        VENV.unlink()
    else:
        shutil.rmtree(VENV)


def create(uv: str | None, lock: int) -> None:
    """Make an empty environment, with pip in it unless uv does the installing."""
    version = ".".join(map(str, sys.version_info[:3]))
    say(f"making {VENV.name} with Python {version} ({sys.executable})")
    if uv:
        run(
            [uv, "venv", "--quiet", "--seed", "--python", sys.executable, VENV],
            doing=f"making {VENV.name}",
            lock=lock,
        )
    else:
        run([sys.executable, "-I", "-m", "venv", VENV], doing=f"making {VENV.name}", lock=lock)


def add_packages_of(other: Path) -> None:
    """Let the environment see the packages of another, after its own."""
    for packages in other.glob("lib/python3.*/site-packages"):
        beside = VENV / packages.relative_to(other)
        (beside / "packages-of-dev.pth").write_text(f"{packages}\n", encoding="utf-8")


def has_pip() -> bool:
    return (
        subprocess.run([PYTHON, "-I", "-m", "pip", "--version"], capture_output=True, check=False).returncode
        == 0
    )


def install(uv: str | None, requirement: str, lock: int) -> None:
    # Bytecode is compiled when a module is first imported: compiling all of it here costs more than it saves.
    if uv:
        run(
            [uv, "pip", "install", "--python", PYTHON, "-e", requirement, *ALSO],
            doing="installing",
            lock=lock,
        )
        return
    if not has_pip():
        run([PYTHON, "-I", "-m", "ensurepip", "--upgrade"], doing="adding pip", lock=lock)
    pip: list[str | Path] = [
        PYTHON,
        "-I",
        "-m",
        "pip",
        "install",
        "--no-user",
        "--no-compile",
        "--progress-bar",
        "off",
    ]
    run([*pip, "-e", requirement, *ALSO], doing="installing", lock=lock)


def make(level: str, stamp: str, lock: int) -> None:
    """Bring .venv to `level`.

    Raises:
        InstallFailedError: PyPI could not be reached, or a package did not install.
    """
    started = time.monotonic()
    for name in SATISFIES[level]:
        stamp_path(name).unlink(missing_ok=True)
    remove_unsound()
    uv = shutil.which("uv")
    requirement = f"{ROOT}[{EXTRAS[level]}]"
    say(f"installing {EXTRAS[level]} and what they need into {VENV.name} (first time: about a minute)")
    # uv knows neither pip's mirrors nor its certificates; where it fails, pip is asked before the user is.
    installers: list[str | None] = [uv, None] if uv else [None]
    for installer in installers:
        try:
            if not VENV.exists():
                create(installer, lock)
            if level == "spark":
                add_packages_of(ROOT / ".venv")
            INSTALLING.touch()
            install(installer, requirement, lock)
            break
        except InstallFailedError:
            if installer is None:
                INSTALLING.unlink(missing_ok=True)
                raise
            say("uv could not do it, trying pip")
            if not works():
                shutil.rmtree(VENV, ignore_errors=True)
    INSTALLING.unlink()
    for name in SATISFIES[level]:
        unfinished = stamp_path(name).with_suffix(".new")
        unfinished.write_text(stamp + "\n", encoding="utf-8")
        unfinished.replace(stamp_path(name))
    say(f"the environment is ready ({time.monotonic() - started:.0f} s)")


def main() -> int:
    parser = argparse.ArgumentParser(description="Make or mend .venv; use tools/bootstrap.")
    parser.add_argument("level", choices=sorted(EXTRAS))
    parser.add_argument("stamp", help="what a finished environment is marked with")
    arguments = parser.parse_args()
    try:
        with locked() as lock:
            if not is_current(arguments.level, arguments.stamp):
                make(arguments.level, arguments.stamp, lock)
    except InstallFailedError as error:
        say(str(error))
        say("is PyPI (or your mirror, PIP_INDEX_URL) reachable? Run the command again to go on.")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run makes the environment anew")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
