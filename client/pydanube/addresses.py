"""Where a broker answers if nobody says otherwise, and where operations are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DEFAULT_BROKER_URL: Final = "http://127.0.0.1:6650"
DEFAULT_ADMIN_URL: Final = "http://127.0.0.1:50051"


def admin_address(admin: str | None, broker: str | None, environment: Mapping[str, str]) -> str:
    """Return the address of an admin port if one is named, else of a clients' port, which takes operations too.

    What was given goes before what the environment says, and that before this machine's admin port.
    """
    endpoint, url = environment.get("DANUBE_ADMIN_ENDPOINT"), environment.get("DANUBE_BROKER_URL")
    return admin or broker or endpoint or url or DEFAULT_ADMIN_URL
