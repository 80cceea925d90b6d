"""Completion in bash, zsh and fish: words from a table, names from the broker.

A press of the tab key must be answered before it is noticed, and importing the registry alone takes longer than that.
So the words stand in `words.json`, written by tools/gen_docs.py, and the broker is asked over a plain socket; what runs
at the key imports neither grpc nor the operations.
"""
