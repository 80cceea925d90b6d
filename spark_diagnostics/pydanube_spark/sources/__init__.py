"""The data sources `danube` and `danube_telemetry`, and `read_topic`."""
