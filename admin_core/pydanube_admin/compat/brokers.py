"""BrokerAdmin and ClusterAdmin: one broker, which leads itself."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from pydanube_core.errors import NotImplementedYet
from pydanube_core.generated import danube_admin_pb2 as pb

from pydanube_admin.compat.asking import Asking

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
        await self._ask("brokers.unload", {"broker_id": request.broker_id})
        return pb.UnloadBrokerResponse(started=True)

    async def activate_broker(self, request: pb.ActivateBrokerRequest) -> pb.ActivateBrokerResponse:
        await self._ask("brokers.activate", {"broker_id": request.broker_id})
        return pb.ActivateBrokerResponse(success=True)

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
