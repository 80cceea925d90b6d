"""The schemes of a broker's address, as clients, links and the operations take them."""

from __future__ import annotations

from typing import Final

#: scheme → whether it means TLS
SCHEMES: Final = {"http": False, "https": True, "danube": False, "danubes": True}
