"""Which of two events of one object is the newer: the sequencer as text that compares (§1.7)."""

import re

from app.events.effects import ContentChange, content_change, is_concrete

_HEX = re.compile("[0-9A-F]+")


def comparable(sequencer: str) -> str:
    """The sequencer so that comparing texts of one object follows §1.7; "" if there is none or it is not hex.

    The rule pads the shorter with zeros on the right; stripping the zeros instead gives the same order without
    knowing the other. Applying it twice changes nothing.
    """
    found = sequencer.upper()
    return found.rstrip("0") if _HEX.fullmatch(found) else ""


def states_content(name: str, version: str) -> bool:
    """Whether the event says what the bucket holds now under its key, so that its sequencer supersedes older ones.

    Not so access, tags, locks and the like, and not the removal of one concrete version, which need not be the newest.
    """
    found = content_change(name)
    if found is ContentChange.REMOVED:
        return not is_concrete(version)
    return found is not ContentChange.NOTHING
