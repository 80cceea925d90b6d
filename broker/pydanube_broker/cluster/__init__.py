"""The broker's place in the cluster: membership, election, assignment, and the catalog of topics.

A broker alone on its own metadata is `lone`, one of several on etcd is `joined`. Both offer the same interface.
"""
