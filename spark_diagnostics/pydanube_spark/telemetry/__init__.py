"""Telemetry in Spark: where its files are, and made-up telemetry whose truth is known."""
