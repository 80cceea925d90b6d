"""Telemetry in the object store: Parquet files of samples, written, merged, thinned, deleted, read."""
