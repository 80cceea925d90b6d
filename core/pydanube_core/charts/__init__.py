"""Charts as data, and as pictures: for reports on telemetry and the MCP server."""
