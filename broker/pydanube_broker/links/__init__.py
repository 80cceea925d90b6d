"""Links: topics of another cluster, mirrored here at the same offsets."""
