"""Quotas of namespaces and principals at this broker: what they use, and how much they may."""
