"""Who did what: every call leaves records in `/system/audit`, each holding the hash of the one before."""
