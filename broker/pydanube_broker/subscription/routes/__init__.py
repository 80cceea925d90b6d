"""Routing by key: slots, queues, filters, and parts of the log spread over consumers. Pure."""
