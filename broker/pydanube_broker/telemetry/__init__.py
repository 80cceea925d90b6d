"""The broker's records of itself: rounds of the sampler to Parquet in the object store."""

from pydanube_broker.telemetry.writer import TelemetryOptions, TelemetryWriter, machine_of

__all__ = ["TelemetryOptions", "TelemetryWriter", "machine_of"]
