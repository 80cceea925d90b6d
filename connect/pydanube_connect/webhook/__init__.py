"""`webhook-source`: requests of other systems as records."""
