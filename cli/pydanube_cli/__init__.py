"""The `danube` command."""
