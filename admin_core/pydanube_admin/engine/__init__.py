"""What carries operations out: their declaration, the desk of changes, plans, tasks and the audit. Knows no single one."""
