"""A topic as a table: its objects and its live tail as columns of Arrow. Needs the extra `tier`.

`TopicQuery` names topics and positions, `locate` finds where their messages are, `between` cuts that to the positions, and
`reading` reads it. What a broker has to be asked for goes through `Broker`.
"""
