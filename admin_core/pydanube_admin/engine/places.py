"""Decide which broker carries a call out: the same for a call made directly, in a plan, as an undo, or about a task.

An operation declares its place (`Place`). An operation that carries out another one is carried out where that one is: its
arguments name it, or the record of a plan or a change does. The whole outer call is then sent to that broker, which
records it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pydanube_core.cluster_port import ClusterPort
from pydanube_core.errors import ClusterError, InvalidArgument, InvalidName
from pydanube_core.facts import BrokerAddress
from pydanube_core.names import TopicName

from pydanube_admin.engine.broker_names import id_in
from pydanube_admin.engine.change_records import PREFIX as CHANGES
from pydanube_admin.engine.change_records import ChangeRecord
from pydanube_admin.engine.models import Place
from pydanube_admin.engine.operation import DECLARED
from pydanube_admin.engine.plan_records import PREFIX as PLANS
from pydanube_admin.engine.plan_records import PlanRecord
from pydanube_admin.engine.stored_records import is_id
from pydanube_admin.engine.task_records import PREFIX as TASKS
from pydanube_admin.engine.task_records import RUNNING, TaskRecord, broker_of

MAX_DEPTH: Final = 4  # plans.apply, changes.undo, cluster.rebalance, and one more than handlers accept


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another broker, and why the call is for it: the beginning of a sentence."""

    broker: BrokerAddress
    because: str


class Places:
    """Finds the broker of each call. The records are read from the port's store."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port

    async def elsewhere(self, name: str, arguments: bytes | Mapping[str, Any]) -> Elsewhere | None:
        """Return the broker that carries a call out. None: this one, or the call is refused anyway."""
        given = _object(arguments)
        place = Place.CALL
        for _ in range(MAX_DEPTH):
            operation = DECLARED.get(name)
            if operation is None:
                return None
            undoing = place is Place.CHANGE
            place = operation.undo_at if undoing and operation.undo_at is not None else operation.at
            match place:
                case Place.ANYWHERE:
                    return None
                case Place.OWNER:
                    return await self._owner(given)
                case Place.BROKER:
                    broker_id = id_in(self._port, given)
                    return await self._member(broker_id, "")
                case Place.LEADER:
                    leader = await self._port.leader()
                    return (
                        None
                        if leader is None
                        else self._unless_own(leader, f"{name} is for the leader, which")
                    )
                case Place.TASK:
                    return await self._runner(given.get("task_id"))
                case Place.CALL | Place.PLAN | Place.CHANGE:
                    name, given = await self._within(place, given)
        return None

    async def _within(self, place: Place, given: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Return the operation and arguments of the inner call, with an empty name if there is none."""
        record: PlanRecord | ChangeRecord | None
        match place:
            case Place.CALL:
                return str(given.get("operation")), _object(given.get("arguments"))
            case Place.PLAN:
                record = await self._record(PlanRecord, PLANS, str(given.get("plan_token")).partition(".")[0])
            case _:
                record = await self._record(ChangeRecord, CHANGES, given.get("call_id"))
        return ("", {}) if record is None else (record.operation, record.arguments)

    async def _record(self, kind: Any, prefix: str, record_id: Any) -> Any:
        """Return a stored record, or None if it cannot be read, which the operation itself reports."""
        if isinstance(record_id, str) and is_id(record_id):
            with suppress(ClusterError, ValueError, TypeError, KeyError):
                item = await self._port.read_state(prefix + record_id)
                return None if item is None else kind.from_bytes(item.value)
        return None

    async def _runner(self, task_id: Any) -> Elsewhere | None:
        """Return the broker that runs a task, or None."""
        task: TaskRecord | None = await self._record(TaskRecord, TASKS, task_id)
        if task is None or task.state != RUNNING or task.life == self._port.life:
            return None
        return await self._member(broker_of(task.life), f"the task {task.task_id}")

    async def _owner(self, given: Mapping[str, Any]) -> Elsewhere | None:
        """Return the owner of the named topic, or None if it has several, which this broker queries.

        Also None if the owner is not registered: this broker then answers from the metadata.
        """
        topic = given.get("topic")
        if not isinstance(topic, str):
            return None
        try:
            name = str(TopicName.parse(topic))
        except (InvalidName, InvalidArgument):
            return None
        owners = list(by_id(await self._port.owners(name)).values())
        if len(owners) != 1 or await self._member(owners[0].broker_id, "") is None:
            return None
        return self._unless_own(owners[0], f"topic {name}")

    async def _member(self, broker_id: Any, because: str) -> Elsewhere | None:
        """Return a registered broker by its id."""
        found = [each for each in await self._port.members() if each.broker_id == broker_id]
        return self._unless_own(found[0], because) if found else None

    def _unless_own(self, broker: BrokerAddress, because: str) -> Elsewhere | None:
        own = broker_of(self._port.life)
        return None if broker.broker_id == own else Elsewhere(broker, because)


def by_id(owners: Sequence[BrokerAddress | None]) -> dict[str, BrokerAddress]:
    """Return the registered owners by their ids."""
    return {owner.broker_id: owner for owner in owners if owner is not None}


def _object(text: Any) -> Mapping[str, Any]:
    """Return a JSON object, or an empty one, which the operation refuses, if it is none."""
    if isinstance(text, bytes | str):
        try:
            text = json.loads(text or b"{}")
        except (ValueError, RecursionError):
            return {}
    return text if isinstance(text, Mapping) else {}
