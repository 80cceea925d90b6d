"""The admin core: every operation, declared once."""
