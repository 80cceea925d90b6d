"""The console: one Textual application over the operations of a cluster, in a terminal or a browser.

It contains no knowledge of its own. A view names the operations whose answers it shows (`views/`), and makes rows of
them by a pure function. A change is an operation called with a plan. `console.py` is the application, `grid.py` its
table, `source.py` the client side of refreshes, `actions.py` the one table of keys.
"""
