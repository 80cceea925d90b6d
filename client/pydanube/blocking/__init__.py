"""What `pydanube.sync` is derived with: a loop in a thread of its own, and methods that wait for it."""
