"""Causes: the rules of diagnosis, a module for each kind of thing that can be wrong. `rules` has them in their order."""
