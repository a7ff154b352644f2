"""Scality Zenko and Artesca (Backbeat): raw keys, sizes as text, null for what is not known, and no sequencer.

Its queue's order is that of an object's events, so they are ordered by their arrival.
"""

from app.events.frontends.frontend import Frontend, normalize_raw, unordered

SOURCE = "scality:s3"

SCALITY = Frontend("scality", normalize_raw, unordered)
