"""Every service of every package by its full name, and every method by its path."""

from __future__ import annotations

from typing import Final

from pydanube_core import services
from pydanube_core.services import Method, Service

SERVICES: Final[dict[str, Service]] = {
    one.full_name: one for one in vars(services).values() if isinstance(one, Service)
}
METHODS: Final[dict[str, Method]] = {
    method.path: method for service in SERVICES.values() for method in service
}
