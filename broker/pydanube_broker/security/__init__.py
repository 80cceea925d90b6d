"""Who calls, and what he may do."""
