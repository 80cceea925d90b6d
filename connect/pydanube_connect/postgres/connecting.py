"""Connect to PostgreSQL and translate its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from pydanube_core.errors import InvalidArgument, PermissionDenied, Unauthenticated

from pydanube_connect.records import RetryLater

CONNECT_S: Final = 10
_CREDENTIALS: Final = re.compile(r"authentication failed|no password supplied|role .* does not exist|pg_hba")
_DATABASE: Final = re.compile(
    r"database .* does not exist|could not translate host|invalid dsn|missing \"=\""
)


class Connection:
    """The connection of a source or a sink. Open it first. It may be opened again after `close`."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self._dsn = dsn
        self._options = options
        self._opened: psycopg.AsyncConnection[Any] | None = None

    async def open(self) -> psycopg.AsyncConnection[Any]:
        """Connect. Raises as `_connected`."""
        self._opened = await _connected(self._dsn, **self._options)
        return self._opened

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    @property
    def opened(self) -> psycopg.AsyncConnection[Any]:
        assert self._opened is not None, "the connection is open"
        return self._opened

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None


async def _connected(dsn: str, **options: Any) -> psycopg.AsyncConnection[Any]:
    """Connect to PostgreSQL.

    Raises:
        ClusterError: the credentials or the address are wrong.
        RetryLater: the server cannot be reached now.
    """
    try:
        return await psycopg.AsyncConnection.connect(
            dsn,
            **{
                "autocommit": True,
                "connect_timeout": CONNECT_S,
                "application_name": "danube-connect",
                **options,
            },
        )
    except psycopg.Error as error:
        raise _unconnected(error) from None  # the message of psycopg may quote the dsn


def _unconnected(error: psycopg.Error) -> Exception:
    text = " ".join(str(error).split())
    if _CREDENTIALS.search(text):
        return Unauthenticated(
            f"PostgreSQL refuses the user of settings.dsn. Correct name and password ({text})."
        )
    if isinstance(error, psycopg.ProgrammingError) or _DATABASE.search(text):
        return InvalidArgument(f"settings.dsn: {text}. Correct the dsn.", field="settings.dsn", value=None)
    return RetryLater(reason=f"PostgreSQL cannot be reached: {text}")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise a `ClusterError` for a failure of PostgreSQL that no retry mends."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        text = f"PostgreSQL refuses {what}: {error.diag.message_primary or error}"
        raise PermissionDenied(f"{text}. Grant it to the user of settings.dsn.") from None
    except (psycopg.errors.SyntaxErrorOrAccessRuleViolation, psycopg.errors.InvalidSchemaName) as error:
        text = f"PostgreSQL refuses {what}: {error.diag.message_primary or error}."
        raise InvalidArgument(text, field="settings", value=None) from None
