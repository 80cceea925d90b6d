"""What the broker writes down of itself: rounds of the sampler to Parquet in the object store."""

from pydanube_broker.telemetry.writer import TelemetryWriter

__all__ = ["TelemetryWriter"]
