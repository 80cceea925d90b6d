"""Topics on their owner: log state, producers, commit (DESIGN chapters 4 and 6)."""
