"""Send batches: what a producer gathers, sends again and answers."""
