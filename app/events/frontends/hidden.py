"""Events of senders in whose buckets the removal of the newest version does not make the one beneath the newest."""

from app.events.frontends import ceph, gcs

# What is in the JSON of a sender's records → the names of its events.
HIDING = {ceph.OF_CEPH: (ceph.EXPIRED,), gcs.OF_GCS: gcs.OF_VERSIONS}


def hides_older(name: str, record: str) -> bool:
    """Return whether what is older than the event's version is hidden or gone once that version was removed."""
    return any(name in names and source in record for source, names in HIDING.items())
