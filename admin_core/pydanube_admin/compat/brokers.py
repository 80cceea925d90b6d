"""The original's gRPC services `BrokerAdmin` and `ClusterAdmin`, answered by our operations."""

from __future__ import annotations

from statistics import pstdev
from typing import Any, Final
from urllib.parse import urlsplit

from pydanube_core.balance import Policy, spread_of
from pydanube_core.errors import Conflict, InvalidArgument, LastBroker, NotImplementedYet
from pydanube_core.generated import danube_admin_pb2 as pb

from pydanube_admin.compat.asking import AskingService
from pydanube_admin.gone_owners import GONE

BAND: Final = Policy().start_band
MAX_MOVES: Final = 1000  # of one call
LEADER: Final = "Cluster_Leader"  # the word by which the tool's web gateway finds the leader
FOLLOWER: Final = "Cluster_Follower"


class Brokers(AskingService):
    """The methods of both services, by name."""

    async def list_brokers(self, _: pb.Empty) -> pb.BrokerListResponse:
        return pb.BrokerListResponse(
            brokers=[
                pb.BrokerInfo(
                    broker_id=each["broker_id"],
                    broker_addr=each["listen"].get("grpc", ""),
                    broker_role=LEADER if each["leader"] else FOLLOWER,
                    admin_addr=each["listen"].get("admin", ""),
                    metrics_addr=_host_and_port(each["listen"].get("metrics", "")),
                    broker_status=each["state"],
                )
                for each in await self._registered()
            ]
        )

    async def _registered(self) -> list[Any]:
        """Return the brokers that are registered. The original's list has no others."""
        return [each for each in await self._ask.every("brokers.list") if each["state"] != GONE]

    async def get_leader_broker(self, _: pb.Empty) -> pb.BrokerResponse:
        return pb.BrokerResponse(leader=(await self._ask("brokers.leader"))["broker_id"])

    async def list_namespaces(self, _: pb.Empty) -> pb.NamespaceListResponse:
        items = await self._ask.every("namespaces.list")
        return pb.NamespaceListResponse(namespaces=[item["namespace"] for item in items])

    async def unload_broker(self, request: pb.UnloadBrokerRequest) -> pb.UnloadBrokerResponse:
        """Unload a broker, or move the topics of namespaces selected by filters. A dry run only counts."""
        asked = {"broker_id": request.broker_id}
        for name, given in (
            ("namespaces", request.namespaces_include),
            ("except_namespaces", request.namespaces_exclude),
        ):
            if comma := next((each for each in given if "," in each), None):
                raise InvalidArgument(
                    f"{comma!r} is no namespace, because it has a comma. Send each namespace as a value of its own",
                    field=f"namespaces_{'include' if name == 'namespaces' else 'exclude'}",
                    value=comma,
                )
            if given:
                asked[name] = ",".join(given)
        if request.dry_run:
            plan = await self._ask("brokers.unload", {**asked, "plan_only": True})
            total = plan["blast_radius"]["topics"]
            return pb.UnloadBrokerResponse(total=total, pending=total)
        done = await self._ask("brokers.unload", asked)
        failed = [f"{topic}: {why}" for topic, why in done["not_begun"].items()]
        return pb.UnloadBrokerResponse(
            started=True,
            total=done["topics"],
            succeeded=done["topics"] - len(failed),
            failed=len(failed),
            failed_topics=failed,
        )

    async def activate_broker(self, request: pb.ActivateBrokerRequest) -> pb.ActivateBrokerResponse:
        why = {"why": request.reason} if request.reason else {}
        await self._ask("brokers.activate", {"broker_id": request.broker_id, **why})
        return pb.ActivateBrokerResponse(success=True)

    async def get_cluster_balance(self, _: pb.ClusterBalanceRequest) -> pb.ClusterBalanceResponse:
        """Return the balance: loads of the bottleneck, or the numbers of topics if no resource is in much use.

        The tool derives its verdict from the coefficient of variation. This field is 0 if the brokers count
        as balanced here, so that the tool suggests no rebalance that would find nothing to move. The figures
        are those of the brokers that a rebalance would consider: a broker that is gone or drained takes no topics,
        and one without a fresh sample has no load.
        """
        found = await self._ask("cluster.balance")
        topics = {each["broker_id"]: each["topics"] for each in await self._ask.every("brokers.list")}
        key = found["bottleneck"]
        loads = {
            each["broker_id"]: each["load"].get(key, 0.0) if key else float(topics.get(each["broker_id"], 0))
            for each in found["brokers"]
        }
        judged = {
            each["broker_id"]: loads[each["broker_id"]]
            for each in found["brokers"]
            if (each["load"] if key else each["takes_topics"])
        }
        spread, lowest = spread_of(list(judged.values()) or [0.0]), min(judged.values(), default=0.0)
        balanced = found["verdict"] == "BALANCED" if key else spread.highest - lowest < 2
        return pb.ClusterBalanceResponse(
            coefficient_of_variation=0.0 if balanced else spread.cv or 0.0,
            mean_load=spread.mean,
            max_load=spread.highest,
            min_load=lowest,
            std_deviation=pstdev(judged.values()) if judged else 0.0,
            broker_count=len(loads),
            brokers=[
                pb.BrokerLoadInfo(
                    broker_id=int(broker),
                    load=load,
                    topic_count=topics.get(broker, 0),
                    is_overloaded=not balanced and broker in judged and load > spread.mean * (1 + BAND),
                    is_underloaded=not balanced and broker in judged and load < spread.mean * (1 - BAND),
                )
                for broker, load in sorted(loads.items(), key=lambda item: item[1])
            ],
            assignment_strategy="Fair",  # new topics go by numbers of topics
        )

    async def trigger_rebalance(self, request: pb.RebalanceRequest) -> pb.RebalanceResponse:
        """Carry out the moves by the measure of `get_cluster_balance`: the load, or the numbers of topics."""
        found = await self._ask("cluster.balance")
        asked: dict[str, Any] = {"by": "load" if found["bottleneck"] else "topics"}
        if request.HasField("max_moves"):
            asked["max_moves"] = min(max(1, request.max_moves), MAX_MOVES)  # 0 moves one in the original, too
        try:
            plan = await self._ask("cluster.rebalance", {**asked, "plan_only": True})
        except (Conflict, LastBroker) as error:
            why = error.message.removeprefix("no move is suggested: ")
            return pb.RebalanceResponse(success=True, error_message=f"no move is suggested: {why}")
        gains = {each["topic"]: each["source_before"] - each["source_after"] for each in found["moves"]}
        topics = [
            each["path"].removeprefix("topics").removesuffix("/owner")
            if each["path"].endswith("/owner")
            else ""
            for each in plan["diff"]
        ]
        proposed = [
            pb.ProposedMove(
                topic_name=topic,
                from_broker=int(each["before"]),
                to_broker=int(each["after"]),
                estimated_load=gains.get(topic, 1.0),
                reason=found["because"] if asked["by"] == "load" else "the numbers of topics differ",
            )
            for topic, each in zip(topics, plan["diff"], strict=True)
            if topic
        ]
        if request.dry_run:
            return pb.RebalanceResponse(success=True, proposed_moves=proposed)
        done = await self._ask("cluster.rebalance", asked)
        return pb.RebalanceResponse(
            success=not done["not_begun"],
            moves_executed=len(done["moves"]),
            proposed_moves=proposed,
            error_message="the moves go on in the background",
        )

    async def cluster_status(self, _: pb.Empty) -> pb.ClusterStatusResponse:
        """Return the answer for the tool's `cluster status`. Consensus is the metadata store's."""
        status = await self._ask("brokers.status")
        brokers = await self._registered()
        return pb.ClusterStatusResponse(
            leader_id=next((int(each["broker_id"]) for each in brokers if each["leader"]), 0),
            current_term=1,
            voters=[int(each["broker_id"]) for each in brokers],
            self_node_id=int(status["broker_id"]),
            raft_addr=_host_and_port(status["listen"].get("admin", "")),
        )

    async def add_node(self, _: pb.AddNodeRequest) -> pb.AddNodeResponse:
        raise _of_raft(
            "AddNode", "start the broker with the metadata.url of the cluster, and it joins without a command"
        )

    async def promote_node(self, _: pb.PromoteNodeRequest) -> pb.PromoteNodeResponse:
        raise _of_raft(
            "PromoteNode", "a broker that has joined takes topics immediately, and votes belong to etcd"
        )

    async def remove_node(self, _: pb.RemoveNodeRequest) -> pb.RemoveNodeResponse:
        raise _of_raft(
            "RemoveNode",
            "`danube brokers unload BROKER_ID`, stop the broker when it is drained, then `danube brokers remove BROKER_ID`",
        )


def _host_and_port(url: str) -> str:
    return urlsplit(url).netloc or url


def _of_raft(method: str, instead: str) -> NotImplementedYet:
    return NotImplementedYet(f"{method}: brokers here have no consensus group of their own: {instead}")
