"""Routing by key: slots, queues, filters, and the distribution of parts of the log to consumers. Pure."""
