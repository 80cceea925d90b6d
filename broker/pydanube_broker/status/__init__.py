"""The status of a running broker: health, metrics, log, HTTP pages."""
