"""Reports over telemetry: consumer lag, cluster balance."""
