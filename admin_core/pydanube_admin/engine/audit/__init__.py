"""The audit: records in a chain of hashes, the log they are appended to, and the keys they are vouched for with."""
