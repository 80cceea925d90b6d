"""The words about a broker that is gone: what to do depends on whether its journal is copied, and who acts on it."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from pydanube_admin import cluster_wide_port, gone_owners
from pydanube_admin.cluster_wide_port import ClusterWidePort
from pydanube_admin.gone_owners import GoneOwner, gone_owner
from pydanube_admin.peers import Peers
from pydanube_core.cluster_port import ClusterPort
from pydanube_core.facts import BrokerAddress, DialFacts
from pydanube_mcp.fencing import fenced

TAKE_OVER = "topics take-over"


@pytest.mark.parametrize(
    ("copies", "taken_over", "said", "unsaid"),
    [
        (False, False, "Start it again", TAKE_OVER),
        (False, True, "Start it again", "Other brokers take"),  # without a copy there is nothing to take over
        (True, False, TAKE_OVER, "Other brokers take"),
        (True, True, "Other brokers take its topics over", TAKE_OVER),
    ],
)
def test_the_remedy_fits_what_the_brokers_do_by_themselves(
    copies: bool, taken_over: bool, said: str, unsaid: str
) -> None:
    gone = GoneOwner(broker_id="7", topics=3, reported_at_ms=None, copies=copies, taken_over=taken_over)
    error = gone.error("/default/t")
    assert said in error.message
    assert unsaid not in error.message
    assert "danube brokers remove 7" in error.message
    assert gone.diagnosis("/default/t", {"topic": "/default/t"}).findings[0].summary == gone.sentence(
        "/default/t"
    )


@pytest.mark.parametrize(
    ("tried", "said", "unsaid"),
    [
        (None, "Start it again", "address"),
        (
            DialFacts(address="http://b:2", failure="Connection refused"),
            "Nothing answers at its address http://b:2 (Con",
            "log",
        ),
        (
            DialFacts(address="http://b:2", failure=None),
            "A server answers at its address http://b:2",
            "Nothing answers",
        ),
        (
            DialFacts(
                address="http://b:2", failure="its certificate is not accepted: expired", connects=True
            ),
            "A server at its address http://b:2 does not answer properly (its certificate is not accepted: expired). "
            "Look at its log before you stop it. ",
            "Nothing answers",
        ),
        (DialFacts(address=None, failure=None), "Its address is not known here", "answers at"),
    ],
)
def test_the_remedy_says_what_was_tried_before(tried: DialFacts | None, said: str, unsaid: str) -> None:
    gone = GoneOwner(broker_id="7", topics=3, tried=tried)
    (finding,) = gone.diagnosis("/default/t", {}).findings
    for told in (gone.error("/default/t").message, finding.summary):
        assert said in told
        assert unsaid not in told
        assert tried is None or told.index(said) < told.index("Start it again")
    assert ("tried" in finding.evidence) is (tried is not None)


@pytest.mark.parametrize(
    "owner",
    [
        GoneOwner(broker_id="7", silent="broker 7 does not answer at http://b:2, as it should do by now"),
        GoneOwner(
            broker_id="7",
            topics=3,
            tried=DialFacts(address="http://b:2", failure="no answer to us within 5 s"),
        ),
        GoneOwner(
            broker_id="7",
            topics=3,
            tried=DialFacts(address="http://b:2", failure="no answer to us within 5 s", connects=True),
        ),
    ],
)
def test_a_model_reads_why_an_owner_does_not_answer(owner: GoneOwner) -> None:
    """The reason was moved away as text of others, and with it most of the summary."""
    (finding,) = owner.diagnosis("/default/t", {}).findings
    told = {"summary": finding.summary, "evidence": dict(finding.evidence)}
    assert fenced(told) == told


def test_of_a_gone_broker_without_topics_it_is_said_that_its_audit_waits() -> None:
    gone = GoneOwner(broker_id="7", topics=0)
    for said in (gone.own_error().message, gone.sentence("/system/_audit-7"), gone.why):
        assert "only its audit waits for it" in said.lower()
        assert "0 topics" not in said


class PortWithSlowStore:
    """Broker 7 is gone; its last report cannot be read before `store_answers`."""

    life = "1/1"

    def __init__(self) -> None:
        self.store_answers = False
        self.reads = 0
        self.gone_since = 5

    async def missed(self) -> dict[str, int]:
        return {"7": 3}

    async def reported_at_ms(self, broker_id: str) -> int | None:
        self.reads += 1
        if not self.store_answers:
            await anyio.sleep_forever()
        return 1_000

    async def journals(self) -> dict[str, dict[str, Any]]:
        return {"7": {"on_loss": "wait", "copies": True}}

    def gone_since_ms(self, broker_id: str) -> int | None:
        return self.gone_since

    async def dialed(self, broker_id: str) -> DialFacts | None:
        return DialFacts(address="http://b:2", failure="Connection refused")


@pytest.mark.anyio
async def test_a_report_that_is_not_read_in_time_is_not_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gone_owners, "STORES_S", 0.05)
    found = await gone_owner(cast(ClusterPort, PortWithSlowStore()), "7")
    assert found is not None
    assert found.copies, "the journal records are read beside the report, not after it"
    assert "never reported" not in found.own_error().message
    assert "could not be read" in found.own_error().message


@pytest.mark.anyio
async def test_what_could_not_be_read_of_a_gone_owner_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone_owners, "STORES_S", 0.05)
    monkeypatch.setattr(cluster_wide_port, "UNREAD_AGAIN_S", 3600.0)
    port = PortWithSlowStore()
    wide = ClusterWidePort(cast(ClusterPort, port), cast(Peers, None))
    owner = [BrokerAddress(broker_id="7", broker_url="", admin_url="")]

    async def reported() -> int | None:
        (found,) = await wide.gone_owners_of(owner)
        return found.reported_at_ms

    for _ in range(3):
        assert await reported() is None
    assert port.reads == 1, "a store that is away does not hold up every call"
    port.store_answers = True
    monkeypatch.setattr(cluster_wide_port, "UNREAD_AGAIN_S", 0.0)  # that time is over
    for _ in range(3):
        assert await reported() == 1_000
    assert port.reads == 2
    port.gone_since = 9  # it was back meanwhile
    await reported()
    assert port.reads == 3


class PortWithTwoGone(PortWithSlowStore):
    """Brokers 7 and 8 are gone. Attempts to reach them, and the report of 8, wait for their events."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.reported = anyio.Event(), anyio.Event()
        self.dials: list[str] = []
        self.two_wait, self.known = anyio.Event(), anyio.Event()

    def gone_since_ms(self, broker_id: str) -> int | None:
        if broker_id == "8":
            self.known.set()
        return super().gone_since_ms(broker_id)

    async def missed(self) -> dict[str, int]:
        return {"7": 3, "8": 2}

    async def reported_at_ms(self, broker_id: str) -> int | None:
        if broker_id == "8":
            await self.reported.wait()
        return 1_000

    async def dialed(self, broker_id: str) -> DialFacts | None:
        self.dials.append(broker_id)
        if set(self.dials[-2:]) == {"7", "8"}:
            self.two_wait.set()
        await self.reached.wait()
        return await super().dialed(broker_id)


async def ids(wide: ClusterWidePort, *owners: str) -> list[str]:
    wanted = [BrokerAddress(broker_id=each, broker_url="", admin_url="") for each in owners]
    return [each.broker_id for each in await wide.gone_owners_of(wanted)]


@pytest.mark.anyio
async def test_calls_about_gone_brokers_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One dialed a broker, another read the report of a second: the first ended with a RuntimeError."""
    monkeypatch.setattr(gone_owners, "STORES_S", 60.0)
    port = PortWithTwoGone()
    port.reached.set()
    wide = ClusterWidePort(cast(ClusterPort, port), cast(Peers, None))
    assert await ids(wide, "7") == ["7"]
    found: list[list[str]] = []

    async def call(broker_id: str) -> None:
        found.append(await ids(wide, broker_id))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(call, "8")
            await anyio.wait_all_tasks_blocked()
            port.reached = anyio.Event()
            group.start_soon(call, "7")
            await anyio.wait_all_tasks_blocked()
            port.known = anyio.Event()
            port.reported.set()
            await port.known.wait()
            port.reached.set()
    assert sorted(found) == [["7"], ["8"]]


@pytest.mark.anyio
async def test_gone_brokers_are_dialed_beside_each_other() -> None:
    port = PortWithTwoGone()
    port.reached.set()
    port.reported.set()
    wide = ClusterWidePort(cast(ClusterPort, port), cast(Peers, None))
    assert await ids(wide, "7", "8") == ["7", "8"]
    port.reached, port.two_wait, port.dials = anyio.Event(), anyio.Event(), []
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(ids, wide, "7", "8")
            await port.two_wait.wait()
            port.reached.set()
