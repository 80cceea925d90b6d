"""The MCP face of the admin core."""
