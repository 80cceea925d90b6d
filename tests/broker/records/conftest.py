"""Every adapter of the metadata store, as for the tests of the stores themselves."""

from tests.storage.metadata.conftest import (  # noqa: F401  # fixtures
    adapter,
    clock,
    etcd_member,
    etcd_trio,
    open_store,
    start,
    store,
)
from tests.support.one_loop import one_loop  # noqa: F401  # a fixture
