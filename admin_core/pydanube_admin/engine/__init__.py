"""Carries operations out, without naming any: declarations, changes, plans, tasks, the audit."""
