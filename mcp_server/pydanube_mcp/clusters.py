"""The clusters of a server: one, or several with names that every tool call must give."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydanube_admin.remote import OpsClient, OpsEntry
from pydanube_core.errors import ClusterError, InvalidArgument
from pydanube_core.spelling import close_names, shown

from pydanube_mcp.profiles import CLUSTER

DEFAULT_NAME: Final = "default"

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def parse_connections(connect: Sequence[str], *, admin_url: str) -> dict[str, str]:
    """Parse `NAME=URL` texts into name → admin URL, in order. Without any, use the one at `admin_url`.

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
                f"--connect {text!r}: write NAME=URL, such as prod=http://10.0.0.5:50051; a name is 1-64 letters, "
                "digits, '_' or '-'",
                field="connect",
                value=text,
            )
        if name in connections:
            raise InvalidArgument(
                f"--connect {text!r}: {name} is given twice; use two names", field="connect", value=text
            )
        connections[name] = url
    return connections


class Clusters:
    """The clients, by name. Connections are made at the first call, so a cluster may be down for now."""

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
        self._clients = {
            name: client(
                url, timeout_s=timeout_s, principal=principal, face="mcp", read_only=read_only, entry=entry
            )
            for name, url in connections.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._clients)

    @property
    def several(self) -> bool:
        return len(self._clients) > 1

    def named(self, name: str) -> OpsClient:
        """Return the client of an existing cluster."""
        return self._clients[name]

    def pick(self, arguments: Mapping[str, Any]) -> tuple[OpsClient, dict[str, Any], str | None]:
        """Return the client for a tool call, the operation's own arguments, and the cluster's name if given.

        With several clusters the name is required: a default would now and then change the wrong one.

        Raises:
            InvalidArgument: it is missing, or there is no such cluster.
        """
        own = dict(arguments)
        if not self.several:
            return next(iter(self._clients.values())), own, None
        name = own.pop(CLUSTER, None)
        client = self._clients.get(name) if isinstance(name, str) else None
        if client is None:
            raise self._unknown(name)
        return client, own, name

    def in_arguments(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the cluster that a call names, if there are several and it exists."""
        name = arguments.get(CLUSTER)
        return name if self.several and isinstance(name, str) and name in self._clients else None

    def _unknown(self, name: Any) -> ClusterError:
        known = ", ".join(self._clients)
        if name is None:
            message = f"the argument {CLUSTER!r} is required; one of {known}"
        else:
            message = f"there is no cluster {shown(name)!r}; one of {known}"
        close = close_names(name, self._clients) if isinstance(name, str) else []
        return InvalidArgument(
            message, field=CLUSTER, value=shown(name), allowed=list(self._clients), did_you_mean=close
        )

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()
