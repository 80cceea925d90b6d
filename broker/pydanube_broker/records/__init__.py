"""Records of the metadata store: typed tables that follow the store, and guarded changes.

A record is one key whose value has a type. A `Table` holds the records of one range of keys in memory and serves
look-ups. `Records` joins tables: it reads them, follows the store with one watch, and changes the store.

    topics = Table(keys.TOPICS, TopicRecord.of)
    records = Records(store, [topics, subscriptions], quarantine=quarantine)
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
  decision is made again, 5 times at most. If a guard of `change.require` fails, the change ends with its error instead.
* A decision without writes ends the change without a transaction.
* A change returns when the tables have it. Its transaction cannot be cancelled and takes 10 s at most. If the outcome
  is unknown, the keys of the change are `unsettled` until `resolve_unknown` has read them.
* Tables apply events in the store's order, whichever broker made the change.
* A value that cannot be read is quarantined (`Quarantine`). The table keeps the previous record, or drops it with
  `drops_unreadable`. In both cases it adopts the revision. A newer value that can be read ends that.

`change(store, decide)` does the same for records outside of tables: counters, marks, single keys.
"""

from pydanube_broker.records.change import ATTEMPTS, Change, Outcome, change
from pydanube_broker.records.followed import Records
from pydanube_broker.records.json_record import JsonRecord
from pydanube_broker.records.quarantine import Quarantine
from pydanube_broker.records.table import Table

__all__ = ["ATTEMPTS", "Change", "JsonRecord", "Outcome", "Quarantine", "Records", "Table", "change"]
