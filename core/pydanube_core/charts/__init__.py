"""Charts as data, and as a picture: what reports on telemetry and the MCP server show."""
