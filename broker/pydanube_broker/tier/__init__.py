"""The cold tier on the owner's side: what leaves the journal, comes back, is kept (docs/design.md#5-the-cold-tier)."""
