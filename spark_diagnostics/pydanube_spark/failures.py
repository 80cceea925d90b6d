"""Turn Spark's exceptions into our errors: a task's own error by its code, any other by its first line with a message.

The text of an exception contains the tracebacks of the worker, the JVM and the driver.
"""

from __future__ import annotations

import re
import socket
from typing import Any, Final
from urllib.parse import urlsplit

from pydanube_core.errors import CODES, ClusterError, Internal, InvalidArgument, Unavailable, error_for

_OURS: Final = re.compile(r"^pydanube_core\.errors\.\w+: ([A-Z_]+): (.+)$", re.MULTILINE)
_JAVA_CLASS: Final = re.compile(r"^(?:Caused by: )?(?:[a-z_]\w*\.)+([A-Z]\w*)(?:: |$)")
_NOISE: Final = re.compile(r"(An error occurred while calling|Traceback|at |File |:?\s*$)")
_MASTER: Final = re.compile(r"local(\[(\*|[0-9]+)(, *[0-9]+)?\]|-cluster\[.+\])?|yarn|(spark|k8s)://.+")
_HELP: Final = "It takes local[2], local[*], spark://host:7077, yarn or k8s://…"
_CONNECT_S: Final = 5.0
_LONGEST: Final = 500


def failure_of(error: Exception) -> ClusterError:
    """Return the error for an exception of a query."""
    if isinstance(error, ClusterError):
        return error
    text = _text(error)
    ours = [(code, message) for code, message in _OURS.findall(text) if code in CODES]
    if ours:
        # The last one, because the root cause is printed first
        code, message = ours[-1]
        return error_for(code, message.strip())
    return Internal(f"Spark failed: {reason_of(error)}", type=type(error).__name__)


def reason_of(error: Exception) -> str:
    """Return the first line with a message, without Java's class names."""
    for line in _text(error).splitlines():
        plain = _JAVA_CLASS.sub("", line.strip(": \t"))
        if plain and not _NOISE.match(plain):
            return plain[:_LONGEST]
    return type(error).__name__


def check_master(master: str) -> None:
    """Check a master's address before a JVM is started for it, and that a standalone master accepts connections. Spark
    itself would try three times, for a minute.

    Raises `Unavailable` if none accepts, and `InvalidArgument` for an invalid address.
    """
    if not _MASTER.fullmatch(master):
        raise InvalidArgument(
            f"--master {master}: there is no such master. {_HELP}", field="master", value=master
        )
    if not master.startswith("spark://"):
        return
    refused = []
    for address in master.removeprefix("spark://").split(","):
        try:
            parts = urlsplit(f"//{address}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port:
            raise InvalidArgument(f"--master {master}: write spark://host:7077", field="master", value=master)
        try:
            socket.create_connection((host, port), timeout=_CONNECT_S).close()
        except OSError as error:
            refused.append(f"{address}: {error.strerror or error}")
        else:
            return
    raise Unavailable(
        f"no Spark master answers at {master} ({'; '.join(refused)}): start it, or leave --master away to run here",
        field="master",
        value=master,
    )


def start_failure(error: Exception, master: str | None) -> ClusterError:
    """Return the error for a session that did not start."""
    if isinstance(error, ClusterError):
        return error
    reason = reason_of(error).rstrip(".")
    if master is not None:
        return InvalidArgument(
            f"Spark does not start with --master {master}: {reason}. {_HELP}", field="master", value=master
        )
    return Internal(f"Spark does not start: {reason}", type=type(error).__name__)


def _text(error: Exception) -> str:
    """Return the whole text of an exception. For Java's, Java's own text comes first."""
    java: Any = getattr(error, "java_exception", None)
    said = []
    if java is not None:
        try:
            said.append(str(java.toString()))
        except Exception:  # the JVM may have ended
            said.append("the JVM is gone")
    return "\n".join([*said, str(error)])
