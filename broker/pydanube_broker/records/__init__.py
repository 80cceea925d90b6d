"""Records of the metadata store: typed tables that follow the store, and guarded changes.

A record is one key whose value has a type. A `Table` holds the records of one range of keys in memory and serves
look-ups. `Records` joins tables: it reads them, follows the store with one watch, and changes the store.

    topics = Table(keys.TOPICS, TopicRecord.of)
    records = Records(store, [topics, subscriptions], aside=aside)
    await records.load()                       # then `Records.follow` as a task, `aclose` at the end

    async def create(change: Change) -> TopicRecord:
        if key in topics:
            raise AlreadyExists(...)
        change.unchanged(namespaces, namespace_key)   # guards: each is a reason to decide again
        change.absent(key)
        change.put(key, spec)                         # writes
        return ...

    outcome = await records.change(create)     # outcome.result, outcome.revision

The rules:

* A decision reads tables or, with `change.read`, the store. It adds a guard for each record that it relied on.
* The writes of a decision are one transaction. If a guard fails, the record behind it is brought up to date and the
  decision is made again, 5 times at most. A guard with an error of its own (`change.require`) ends the change instead.
* A decision without writes ends the change without a transaction.
* A change returns when the tables have it. It is not cancelled once begun and takes 10 s at most. If its outcome is
  unknown, its keys are `unsettled` until `resolve_unknown` has read them.
* Tables take in events in the store's order, their own broker's and those of other brokers alike.
* A value that cannot be read is set aside (`Aside`): the table keeps the record that it had, or drops it if the table
  is made so. Its revision counts all the same.

`change(store, decide)` is the same for records that no table holds: counters, marks, single keys.
"""

from pydanube_broker.records.change import ATTEMPTS, Change, Outcome, change
from pydanube_broker.records.followed import Records
from pydanube_broker.records.json_record import JsonRecord
from pydanube_broker.records.set_aside import Aside
from pydanube_broker.records.table import Table

__all__ = ["ATTEMPTS", "Aside", "Change", "JsonRecord", "Outcome", "Records", "Table", "change"]
