"""Errors of the catalog beside the codes of the core."""

from __future__ import annotations

from pydanube_core.errors import Conflict


class CatalogFenced(Conflict):
    """A later owner has the topic: its objects must be left alone."""
