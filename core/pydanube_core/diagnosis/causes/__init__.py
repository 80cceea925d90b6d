"""The rules of diagnosis, one module for each kind of subject. `rules` has them in order."""
