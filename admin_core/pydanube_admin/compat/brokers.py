"""BrokerAdmin and ClusterAdmin: one broker, which leads itself."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydanube_core.errors import InvalidArgument, LastBroker, NotImplementedYet
from pydanube_core.generated import danube_admin_pb2 as pb

from pydanube_admin.compat.asking import Asking

__all__ = ["Brokers"]

LEADER: Final = "Cluster_Leader"  # the word by which the tool's web gateway finds whom to ask


class Brokers:
    """The methods of both services, by name."""

    def __init__(self, ask: Asking) -> None:
        self._ask = ask

    async def list_brokers(self, _: pb.Empty) -> pb.BrokerListResponse:
        status = await self._ask("brokers.status")
        listen = status["listen"]
        draining = any(reason["code"] == "draining" for reason in status["reasons"])
        return pb.BrokerListResponse(
            brokers=[
                pb.BrokerInfo(
                    broker_id=status["broker_id"],
                    broker_addr=listen.get("grpc", ""),
                    broker_role=LEADER,
                    admin_addr=listen.get("admin", ""),
                    metrics_addr=_host_and_port(listen.get("metrics", "")),
                    broker_status="draining" if draining else "active",
                )
            ]
        )

    async def get_leader_broker(self, _: pb.Empty) -> pb.BrokerResponse:
        return pb.BrokerResponse(leader=(await self._ask("brokers.status"))["broker_id"])

    async def list_namespaces(self, _: pb.Empty) -> pb.NamespaceListResponse:
        items = await self._ask.every("namespaces.list")
        return pb.NamespaceListResponse(namespaces=[item["namespace"] for item in items])

    async def unload_broker(self, request: pb.UnloadBrokerRequest) -> pb.UnloadBrokerResponse:
        broker_id = await self._own(request.broker_id)
        raise LastBroker(
            f"broker {broker_id} is the only one: there is no other that could take its topics",
            field="broker_id",
            value=broker_id,
        )

    async def activate_broker(self, request: pb.ActivateBrokerRequest) -> pb.ActivateBrokerResponse:
        """It is active already: a broker alone is never drained but to stop."""
        await self._own(request.broker_id)
        return pb.ActivateBrokerResponse(success=True)

    async def _own(self, broker_id: str) -> str:
        if not broker_id:
            raise InvalidArgument("broker_id: must be given", field="broker_id", value=broker_id)
        own: str = (await self._ask("brokers.status"))["broker_id"]
        if broker_id != own:
            raise InvalidArgument(
                f"broker_id: there is no broker {broker_id!r}; the only one is {own}",
                field="broker_id",
                value=broker_id,
                existing=[own],
            )
        return own

    async def get_cluster_balance(self, _: pb.ClusterBalanceRequest) -> pb.ClusterBalanceResponse:
        raise _of_a_cluster("balance")

    async def trigger_rebalance(self, _: pb.RebalanceRequest) -> pb.RebalanceResponse:
        raise _of_a_cluster("rebalancing")

    async def cluster_status(self, _: pb.Empty) -> pb.ClusterStatusResponse:
        """A group of one, which the tool's `cluster status` reads; there is no consensus behind it."""
        status = await self._ask("brokers.status")
        number = int(status["broker_id"])
        return pb.ClusterStatusResponse(
            leader_id=number,
            current_term=1,
            voters=[number],
            self_node_id=number,
            raft_addr=_host_and_port(status["listen"].get("admin", "")),
        )

    async def add_node(self, _: pb.AddNodeRequest) -> pb.AddNodeResponse:
        raise _of_a_cluster("adding a node")

    async def promote_node(self, _: pb.PromoteNodeRequest) -> pb.PromoteNodeResponse:
        raise _of_a_cluster("promoting a node")

    async def remove_node(self, _: pb.RemoveNodeRequest) -> pb.RemoveNodeResponse:
        raise _of_a_cluster("removing a node")


def _host_and_port(url: str) -> str:
    return urlsplit(url).netloc or url


def _of_a_cluster(what: str) -> NotImplementedYet:
    return NotImplementedYet(f"{what} is for clusters of several brokers; this one stands alone")
