"""A broker whose admin core does not stop in time: a task that is slow to end, or an audit on a disk that stands still."""

from __future__ import annotations

import anyio
import pytest
from pydanube_admin.core import AdminCore
from pydanube_broker.broker import Broker
from pydanube_broker.settings.sections import MEMORY_DIR, Data, Settings
from pydanube_cli.composition import administered

from tests.support.several_brokers import FREE

pytestmark = pytest.mark.anyio

GRACE_S = 1.0


async def test_clients_have_their_part_of_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    drain, given = Broker.drain, list[float]()

    async def never(_: AdminCore) -> None:
        await anyio.sleep_forever()

    async def noted(broker: Broker, grace_s: float) -> None:
        given.append(grace_s)
        await drain(broker, grace_s)

    monkeypatch.setattr(AdminCore, "aclose", never)
    monkeypatch.setattr(Broker, "drain", noted)
    async with administered(Settings(data=Data(dir=MEMORY_DIR), server=FREE), grace_s=GRACE_S):
        pass
    *within_the_grace, last_resort = given
    assert last_resort > GRACE_S
    assert len(within_the_grace) == 1, "streams end before the watchdog ends the process"
    assert within_the_grace[0] < GRACE_S
