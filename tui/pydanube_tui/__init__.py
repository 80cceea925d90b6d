"""The console: one Textual application over the operations of a cluster, in a terminal or a browser.

It owns no knowledge. A view names the operations whose answers it shows (`views/`), and makes rows of them by a pure
function; what changes something is an operation called with a plan. `console.py` is the application, `grid.py` its
table, `source.py` what asks the cluster, `actions.py` the one table of keys.
"""
