"""Who gets which message by its key: slots, queues, filters, and parts of the log spread over consumers. Pure."""
