"""The metadata store of several brokers: etcd 3.4 or newer, over gRPC (extra `cluster`)."""

from pydanube_storage.metadata.etcd.address import EtcdAddress, EtcdOptions
from pydanube_storage.metadata.etcd.store import EtcdStore

__all__ = ["EtcdAddress", "EtcdOptions", "EtcdStore"]
