"""Change the delivery state of events: the only code that writes `cursors`, `parked` and `dead_letters`.

Each arrow of the state diagram (docs/explanation/architecture.md, "An event at a target") is one function or, where a
worker's batch has several of them, one member of its `Settlement`:

| arrow | from | where |
|---|---|---|
| record | pending | `cursors.begin` for a new target; an append adds to `targets.recorded` (`app.outbox.log`) |
| deliver, supersede, park, retry, bury | pending or parked | members of `Settlement`; `SettlementStore.settle` |
| replay | settled | `cursors.begin_replay`, `cursors.end_replay` |
| replay | dead | `events.replay` |
| redeliver | settled | `events.redeliver` |
| retry now | parked | `events.make_due`; all of a target that is resumed or changed, `events.try_all_now` |
| give up | parked | `events.give_up` |
| purge | dead | `events.purge`; with its target also parked, `events.purge_any` |
| revoke | leased, revoked | `cursors.revoke` |
| remove | all | `cursors.remove` |

They keep the counters balanced (`app.outbox.admin.counters`): what one takes from a state it adds to another in the
same transaction. `recorded` counts an event again for each time that a replay or a redelivery makes it pending or
parked once more; such an event is *replayed*, and so is a replayed dead letter. An event holds a place in its target's
queue (`queue_limit`) until it is settled, and then frees it (`cursors.freed`); a replayed event holds none.

`app.outbox.delivery.leases` alone writes the columns of `cursors` that are a lease; a mirror's knowledge of versioned
keys has a column there too, `folded` (`app.outbox.versions`).
"""
