"""Send batches: gathering, retries and receipts of a producer."""
