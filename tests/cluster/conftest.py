"""Several real brokers and what fails between them; `make test-cluster`."""

from tests.support.one_loop import one_loop

__all__ = ["one_loop"]
