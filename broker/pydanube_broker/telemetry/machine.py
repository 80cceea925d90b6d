"""Capacities of the machine, as far as it can be asked. Network capacity cannot: nobody declares it yet."""

from __future__ import annotations

import os
import sys

import psutil

from pydanube_broker.telemetry.rows import Machine


def machine_of(broker_id: str, incarnation: int) -> Machine:
    """Processors that this process may use, and memory."""
    cpus = os.cpu_count() if sys.platform == "darwin" else len(os.sched_getaffinity(0))
    return Machine(
        broker_id=broker_id, incarnation=incarnation, cpus=cpus, memory_bytes=psutil.virtual_memory().total
    )
