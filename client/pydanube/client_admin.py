"""A client's administration, made on first use: the classes of results take a while to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydanube.admin.generated.operations import Admin
    from pydanube.wire.connections import Connections


def client_admin(connections: Connections, principal: str | None) -> Admin:
    """Return the operations of the cluster over these connections."""
    from pydanube.admin.calling import OperationCaller
    from pydanube.admin.generated.operations import Admin
    from pydanube.wire.ops_channel import OpsChannel

    channel = OpsChannel(connections.url, field="url", transport=connections.to(connections.url))
    return Admin(OperationCaller(channel, principal=principal))
