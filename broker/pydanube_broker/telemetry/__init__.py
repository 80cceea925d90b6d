"""The broker's records of itself: rounds of the sampler to Parquet in the object store."""

from pydanube_broker.telemetry.machine import machine_of
from pydanube_broker.telemetry.writer import TelemetryOptions, TelemetryWriter

__all__ = ["TelemetryOptions", "TelemetryWriter", "machine_of"]
