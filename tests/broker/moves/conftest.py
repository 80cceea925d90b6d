import pytest
from pydanube_broker.moves import moves

from tests.broker.cluster.conftest import clock, store
from tests.broker.delivery.conftest import broker, client, one_loop, opened

__all__ = ["broker", "client", "clock", "one_loop", "opened", "store"]


@pytest.fixture
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers do not report their topics, so that a test decides when. The interval is longer than any test."""
    monkeypatch.setattr(moves, "REPORT_S", 3600.0)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait of a new leader before it takes topics over without a plan."""
    monkeypatch.setattr(moves, "LEASE_MS", 300)
