"""Changes that were made, and how they are taken back."""
