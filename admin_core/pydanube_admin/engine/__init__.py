"""The machinery that carries operations out: declarations, the desk of changes, plans, tasks, the audit. It knows no single operation."""
