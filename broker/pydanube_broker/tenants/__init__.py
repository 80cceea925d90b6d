"""Quotas of namespaces and principals at this broker: their use, and their limits."""
