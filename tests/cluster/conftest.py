"""Several real brokers and what fails between them; `make test-cluster`."""

from tests.crash.conftest import anyio_backend, one_loop

__all__ = ["anyio_backend", "one_loop"]
