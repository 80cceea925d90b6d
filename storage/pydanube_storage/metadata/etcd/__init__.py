"""The metadata store of several brokers: etcd 3.4 or newer, spoken to by gRPC (extra `cluster`)."""

from pydanube_storage.metadata.etcd.address import EtcdAddress, EtcdOptions
from pydanube_storage.metadata.etcd.store import EtcdStore

__all__ = ["EtcdAddress", "EtcdOptions", "EtcdStore"]
