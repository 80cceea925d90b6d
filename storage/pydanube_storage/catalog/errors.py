"""Errors of the catalog beside the codes of the core."""

from __future__ import annotations

from pydanube_core.errors import Conflict


class CatalogFenced(Conflict):
    """A later owner has taken the topic: whoever gets this must leave its objects alone."""
