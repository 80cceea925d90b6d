"""Batches on their way out: what a producer gathers, sends again and answers for."""
