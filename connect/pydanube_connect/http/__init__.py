"""`http-sink`: records as requests to an HTTP API."""
