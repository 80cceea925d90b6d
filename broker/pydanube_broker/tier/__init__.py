"""The cold tier on the owner's side: flush from the journal, read back, maintain (docs/design.md#5-the-cold-tier)."""
