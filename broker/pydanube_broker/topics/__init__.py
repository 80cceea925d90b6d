"""Topics on their owner: log state, producers, commit (docs/design.md#6-delivery)."""
