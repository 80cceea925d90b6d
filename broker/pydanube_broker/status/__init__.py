"""What a running broker shows of itself beside its services: health, metrics, log, HTTP status."""
