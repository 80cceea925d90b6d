"""Turn any exception into the output that the user sees, and the exit code: the command's outermost layer.

Human form: `error CODE: message`, then `try:` lines with the commands that would help. With `--json` one line
`{"error": …}` on stderr. A defect of ours is an INTERNAL error with its type. The stack is shown only with
`DANUBE_DEBUG=1`, because a user cannot act on it.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

from pydanube_core.errors import ClusterError, DiskFull, Internal, InvalidArgument, LimitReached
from pydanube_core.secrets import without_passwords

EXIT_INTERRUPTED: Final = 130


def wants_json(argv: Sequence[str]) -> bool:
    """Return whether `--json` was given. Needed before parsing, which may fail."""
    words = list(argv[: argv.index("--")]) if "--" in argv else list(argv)
    pairs = pairwise(words)
    return "--json" in words or "--output=json" in words or ("--output", "json") in set(pairs)


def guarded(body: Callable[[], int], *, as_json: bool) -> int:
    """Run `body` and turn any exception into output on stderr and an exit code."""
    try:
        try:
            code = body()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
        return code
    except BaseException as error:
        if _closed_pipe(error):
            _silence_stdout()
            return 0
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error)):
            _flush_quietly()
            return EXIT_INTERRUPTED
        _flush_quietly()
        found = cluster_error(error)
        report(found, as_json=as_json)
        if os.environ.get("DANUBE_DEBUG") and error is not found:
            import traceback

            traceback.print_exception(error, file=sys.stderr)
        return found.exit_code


def cluster_error(error: BaseException) -> ClusterError:
    """Return the error to show: the first of ours inside, else an Internal that names its type."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, ClusterError):
            return leaf
    first = leaves[0]
    if isinstance(first, OSError):
        return _of_the_system(first)
    return Internal(
        f"{type(first).__name__}: {first}. This is a defect of danube: run again with DANUBE_DEBUG=1 and report its "
        "output",
        type=type(first).__name__,
    )


def _of_the_system(error: OSError) -> ClusterError:
    """Return the error for one of the operating system: a wrong file is the caller's, a full disk is not."""
    where = f"{error.filename}: " if error.filename else ""
    why = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        if error.filename is None:
            # Messages may be published, topics deleted: a script that tries again would do it twice
            return DiskFull(
                f"the output: {why}. Make room there, or write elsewhere. Its earlier changes stand: look before you "
                "run it again",
                reason=why,
                retryable=False,
            )
        return DiskFull(f"{where}{why}. Make room there, or write elsewhere", reason=why)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return LimitReached(f"{where}{why}. Allow more of them: ulimit -n 4096", reason=why)
    if error.filename is None:
        return Internal(
            f"input or output failed: {why}. Look at the input and the output of the command", reason=why
        )
    folder = (
        os.path.dirname(os.fspath(error.filename)) if isinstance(error.filename, str | os.PathLike) else ""
    )
    if error.errno == errno.ENOENT and folder and not os.path.isdir(folder):
        why = f"the folder {folder} does not exist. Make it, or name another"
    return InvalidArgument(f"{where}{why}", field="file", value=error.filename)


def report(error: ClusterError, *, as_json: bool) -> None:
    """Show an error on stderr."""
    if as_json:
        line = json.dumps({"error": error.to_dict()}, ensure_ascii=False, default=str)
    else:
        message = printable(error.message, keep="\n")
        line = f"error {error.code}: {message}"
        for step in error.next:
            why = f"   # {printable(str(step['why']))}" if step.get("why") else ""
            line += f"\ntry: {printable(str(step.get('command') or step.get('operation')))}{why}"
    with suppress(OSError, ValueError):  # stderr may have no reader either
        print(without_passwords(line), file=sys.stderr, flush=True)  # it quotes the user's input


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` without control characters: foreign text must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _closed_pipe(error: BaseException) -> bool:
    return any(isinstance(leaf, BrokenPipeError) for leaf in _leaves(error))


def _silence_stdout() -> None:
    """Redirect stdout to nothing, or the interpreter complains when it flushes it at exit."""
    with suppress(OSError, ValueError):  # stdout may have been replaced by something that is no file
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def _flush_quietly() -> None:
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        _silence_stdout()
