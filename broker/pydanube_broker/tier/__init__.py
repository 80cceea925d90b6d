"""The cold tier on the owner's side: what leaves the journal, what comes back, what is kept (DESIGN chapter 5)."""
