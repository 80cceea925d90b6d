"""The words that people use for things, and the operations they mean."""
