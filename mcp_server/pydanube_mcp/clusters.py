"""The clusters of a server: one, or several with names that every tool call must give."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_admin.remote import OpsClient, OpsEntry
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.spelling import close_names, shown

from pydanube_mcp.narrowing import current_narrowing
from pydanube_mcp.profiles import CLUSTER

DEFAULT_NAME: Final = "default"

_READ_ONLY: Final = "read_only"  # behind a URL
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def parse_connections(connect: Sequence[str], *, admin_url: str) -> dict[str, str]:
    """Parse `NAME=URL` texts into name → admin URL, in order. Without any, use the one at `admin_url`.

    `,read_only` behind a URL stays there. `Clusters` reads it.

    Raises:
        InvalidArgument: a text of another form, or a name given twice.
    """
    if not connect:
        return {DEFAULT_NAME: admin_url}
    connections: dict[str, str] = {}
    for text in connect:
        name, _, url = text.partition("=")
        if not _NAME.match(name) or not url:
            raise InvalidArgument(
                f"--connect {text!r}: write NAME=URL, such as prod=http://10.0.0.5:50051. A name is 1-64 letters, "
                "digits, '_' or '-'",
                field="connect",
                value=text,
            )
        if name in connections:
            raise InvalidArgument(
                f"--connect {text!r}: {name} is given twice. Use two names", field="connect", value=text
            )
        _, comma, option = url.partition(",")
        if comma and option != _READ_ONLY:
            raise InvalidArgument(
                f"--connect {text!r}: there is no option {option!r}. Write {_READ_ONLY} behind the comma, or no comma",
                field="connect",
                value=text,
                allowed=[_READ_ONLY],
            )
        connections[name] = url
    return connections


class Clusters:
    """The clients, by name. Connections are made at the first call, so a cluster may be down for now.

    A cluster whose URL ends with `,read_only` has clients whose changes its admin core refuses. So has every
    cluster for a request to an address that only reads (`narrowing`).
    """

    def __init__(
        self,
        connections: Mapping[str, str],
        *,
        timeout_s: float,
        principal: str | None,
        read_only: bool = False,
        entry: OpsEntry | None = None,
        client: type[OpsClient] = OpsClient,
    ) -> None:
        assert connections, "a server speaks for at least one cluster"

        def opened(url: str, *, read_only: bool) -> OpsClient:
            return client(
                url, timeout_s=timeout_s, principal=principal, face="mcp", read_only=read_only, entry=entry
            )

        plain = {name: url.removesuffix(f",{_READ_ONLY}") for name, url in connections.items()}
        self._readers = {name: opened(url, read_only=True) for name, url in plain.items()}
        self._clients = {
            name: self._readers[name]
            if read_only or url != connections[name]
            else opened(url, read_only=False)
            for name, url in plain.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._clients)

    @property
    def several(self) -> bool:
        return len(self._clients) > 1

    @property
    def writable(self) -> tuple[str, ...]:
        """The clusters that take changes from here."""
        return tuple(name for name, client in self._clients.items() if not client.read_only)

    def named(self, name: str) -> OpsClient:
        """Return the client of an existing cluster, for the request that is being answered."""
        return self._readers[name] if current_narrowing.get().read_only else self._clients[name]

    def pick(self, arguments: Mapping[str, Any]) -> tuple[OpsClient, dict[str, Any], str | None]:
        """Return the client for a tool call, the operation's own arguments, and the cluster's name if given.

        With several clusters the name is required: a default would now and then change the wrong one.

        Raises:
            InvalidArgument: it is missing, or there is no such cluster.
        """
        own = dict(arguments)
        if not self.several:
            return self.named(self.names[0]), own, None
        name = own.pop(CLUSTER, None)
        if not isinstance(name, str) or name not in self._clients:
            raise self._unknown(name)
        return self.named(name), own, name

    def in_arguments(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the cluster that a call names, if there are several and it exists."""
        name = arguments.get(CLUSTER)
        return name if self.several and isinstance(name, str) and name in self._clients else None

    def _unknown(self, name: Any) -> ClusterError:
        known = ", ".join(self._clients)
        if name is None:
            message = f"the argument {CLUSTER!r} is required: one of {known}"
        else:
            message = f"there is no cluster {shown(name)!r}. There are {known}"
        close = close_names(name, self._clients) if isinstance(name, str) else []
        return InvalidArgument(
            message, field=CLUSTER, value=shown(name), allowed=list(self._clients), did_you_mean=close
        )

    async def aclose(self) -> None:
        for client in {*self._clients.values(), *self._readers.values()}:
            await client.aclose()
