"""The base of `pydanube.sync`: an event loop in a thread of its own, and methods that wait for it."""
