"""Where a broker's data and metadata are, and how they move: data directory, adoption, release, recovery."""
