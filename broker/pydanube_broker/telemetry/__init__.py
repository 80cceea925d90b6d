"""The broker's records of itself: rounds of the sampler to Parquet in the object store."""

from pydanube_broker.telemetry.events import Events, hash_of
from pydanube_broker.telemetry.writer import TelemetryWriter, machine_of, usable_cpus

__all__ = ["Events", "TelemetryWriter", "hash_of", "machine_of", "usable_cpus"]
