"""A topic as a table: its objects and its live tail as columns of Arrow. Needs the extra `tier`.

`TopicQuery` names topics and positions, `locate` finds their messages, `between` cuts these to the positions, and
`reading` reads them. All calls to a broker go through `Broker`.
"""
