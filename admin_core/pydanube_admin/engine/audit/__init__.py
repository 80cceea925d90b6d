"""The audit: records chained by hashes, the log that they are appended to, and the keys of their MACs."""
