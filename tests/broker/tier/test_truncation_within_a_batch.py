"""A topic that is truncated within its first batch, before anything of it is in objects, goes to objects from there."""

from __future__ import annotations

from pathlib import Path

from pydanube.sync import connect

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_until

ORDERS = "/default/orders"


def test_what_a_truncation_left_of_a_batch_is_flushed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, environment={"DANUBE_TIER__FLUSH_AGE": "2s"}) as broker:
        broker.publish(ORDERS, [b"%d" % n for n in range(40)])
        broker.ask("topics.truncate", topic=ORDERS, before="offset:37")
        wait_until(lambda: broker.ask("topics.describe", topic=ORDERS)["tiered_offset"] == 40)
        with connect(broker.url) as client, client.reader(ORDERS, start="earliest", stop="head") as reader:
            assert [(each.offset, each.payload) for each in reader] == [(n, b"%d" % n) for n in (37, 38, 39)]
        broker.check_log()
        assert "tier_flush_failed" not in broker.log()
