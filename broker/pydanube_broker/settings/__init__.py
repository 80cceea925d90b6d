"""The broker's settings: sections with their values, and where they are read from."""
