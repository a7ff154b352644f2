"""Compare sequencers to decide which of two events of an object is newer (§1.7)."""

import re

from app.events.effects import ContentChange, content_change, is_concrete

_HEX = re.compile("[0-9A-F]+")


def comparable(sequencer: str) -> str:
    """Return the sequencer in a form whose text order follows §1.7; "" if there is none or it is not hexadecimal.

    §1.7 pads the shorter one with zeros on the right; stripping the zeros instead gives the same order without knowing
    the other one. It is idempotent.
    """
    upper = sequencer.upper()
    return upper.rstrip("0") if _HEX.fullmatch(upper) else ""


def states_content(name: str, version: str) -> bool:
    """Return whether the event determines the key's current content, so that it supersedes older events.

    Access, tags and locks do not, nor does the removal of a concrete version, which need not be the newest.
    """
    change = content_change(name)
    if change is ContentChange.REMOVED:
        return not is_concrete(version)
    return change is not ContentChange.NOTHING
