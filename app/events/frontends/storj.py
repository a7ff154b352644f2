"""Storj: records of AWS's form with raw keys; a sequencer is the time of the commit in nanoseconds."""

from app.events.frontends.frontend import Frontend, normalize_raw

SOURCE = "storj:s3"

STORJ = Frontend("storj", normalize_raw)
