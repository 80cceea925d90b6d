"""A broker whose lease may be over acknowledges only what the object store has: another broker may have its topics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydanube_broker.cluster.ids import BrokerId, Incarnation
from pydanube_broker.cluster.membership import Registration
from pydanube_broker.tier.lease_guard import LeaseGuard
from pydanube_storage.metadata import Revision


def registration() -> Registration:
    return Registration(
        broker_id=BrokerId(1), incarnation=Incarnation(1), lease_id=None, revision=Revision(1)
    )


@pytest.mark.parametrize("is_overdue", [False, True])
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_another", [False, True])
def test_the_disk_is_enough_only_under_a_confirmed_lease_that_is_held_and_not_overdue(
    is_overdue: bool, is_lost: bool, is_another: bool
) -> None:
    confirmed = registration()
    membership: Any = SimpleNamespace(
        registration=registration() if is_another else confirmed, is_overdue=is_overdue
    )
    hub: Any = SimpleNamespace(needs_store=None)
    record: Any = None  # read by `run` alone
    LeaseGuard(hub, membership, record, confirmed)
    if is_lost:
        confirmed.lost.set()
    assert hub.needs_store() == (is_overdue or is_lost or is_another)
