"""MinIO, also before 2018, and its forks, such as SILO, which call themselves `minio:s3` (§1.4).

Keys are form-encoded, and the sequencer is the object's modification time in nanoseconds (§1.7). Tags and accesses
repeat the sequencer of the object's creation. Bucketwire's own events have the same form.
"""

from app.events.frontends.frontend import Frontend, as_sent

SOURCE = "minio:s3"
OWN_SOURCES = "bucketwire:"  # what they begin with: repairs, backfills, scans, tests, events of the service

MINIO = Frontend("minio", as_sent)
