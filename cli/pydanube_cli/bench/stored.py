"""The scenario `stored`: a topic that the object store has to have, beside one of the same broker's disk.

The store is that of the broker: a folder of its own, or the one that `DANUBE_TIER__URL` names. Its own speed is measured
beside, by objects that are created as pieces of a chain are.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from pydanube_admin.remote import call_sync
from pydanube_broker.settings.load import load_settings
from pydanube_broker.tier.options import store_options
from pydanube_storage.objects import open_store

from pydanube_cli.bench.catalogue import Plan
from pydanube_cli.bench.fleet import RunningBroker
from pydanube_cli.bench.result import sum_verified

LONE_SENDS: Final = 100
IDLE_S: Final = 5.0
PUTS: Final = 30
PUT_BYTES: Final = 1024  # a piece with a lone message

Run = dict[str, Any]
Scenario = Callable[[Plan, RunningBroker, str], Run]


def stored(plan: Plan, broker: RunningBroker, topic: str, *, e2e: Scenario, latency: Scenario) -> Run:
    """Publish and consume on a topic of durability fsynced, then on a stored one, and send lone messages to another."""
    plain = e2e(plan, broker, f"{topic}-fsynced")
    for name in (topic, f"{topic}-lone"):
        call_sync(
            broker.admin_url,
            "topics.create",
            {"topic": name, "durability": "stored"},
            timeout_s=plan.timeout_s,
        )
    pieces, begun_s = _pieces(plan, broker), time.monotonic()
    found = e2e(plan, broker, topic)
    per_s = (_pieces(plan, broker) - pieces) / (time.monotonic() - begun_s)
    lone = latency(replace(plan, messages=LONE_SENDS), broker, f"{topic}-lone")
    put_ms = _put_ms(broker.data_dir)
    pieces = _settled_pieces(plan, broker)
    time.sleep(IDLE_S)
    linger_ms = 1000 * float(_settings().journal.stored_linger)
    bound_ms = None if put_ms is None else linger_ms + 2 * put_ms
    return {
        **found,
        "verified": sum_verified([plain, found, lone]),
        "stored": {
            "share_of_fsynced": round(found["messages_per_s"] / plain["messages_per_s"], 4),
            "fsynced_messages_per_s": plain["messages_per_s"],
            "lone_p50_ms": lone["p50_ms"],
            "lone_p99_ms": lone["p99_ms"],
            "put_p50_ms": put_ms,
            "lone_p50_to_bound": None if bound_ms is None else round(lone["p50_ms"] / bound_ms, 4),
            "puts_per_s": round(per_s, 2),
            "idle_puts": _pieces(plan, broker) - pieces,
        },
    }


def _settings() -> Any:
    return load_settings(None, os.environ, {})


def _pieces(plan: Plan, broker: RunningBroker) -> int:
    status = call_sync(broker.admin_url, "brokers.status", {}, timeout_s=plan.timeout_s)
    return int(status["journal"]["copied_pieces"] or 0)


def _settled_pieces(plan: Plan, broker: RunningBroker) -> int:
    """Return the number of pieces once no more come: marks and cursors follow the last message by a second or two."""
    before = -1
    while (now := _pieces(plan, broker)) != before:
        before = now
        time.sleep(2.0)
    return now


def _put_ms(data_dir: Path | None) -> float | None:
    """Return the median milliseconds of creating a small object in the broker's store. None on another machine."""
    if data_dir is None:
        return None
    store = open_store(store_options(_settings(), data_dir, spool="bench"))
    folder, taken = f"bench/{secrets.token_hex(4)}", []
    keys = [f"{folder}/{number}" for number in range(PUTS)]
    try:
        for key in keys:
            begun_s = time.perf_counter()
            store.create(key, bytes(PUT_BYTES))
            taken.append((time.perf_counter() - begun_s) * 1000)
    finally:
        for key in keys:
            store.delete(key)
    return round(median(taken), 3)
