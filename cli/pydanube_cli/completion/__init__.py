"""Completion in bash, zsh and fish: words from a table, names from the broker.

A press of the tab key must be answered without a noticeable delay, and importing the registry alone takes
longer than that. So the words are in `words.json`, written by tools/gen_docs.py, and the broker is queried
over a plain socket. The code that runs at the key imports neither grpc nor the operations.
"""
