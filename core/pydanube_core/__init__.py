"""Pure foundations shared by every other package: names, batches, errors, protos."""
