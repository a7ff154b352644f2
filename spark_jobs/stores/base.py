"""What the stores have in common."""


class CannotRead(Exception):
    """What a target holds cannot be read; the message says why and what can be done."""


class NoTable(CannotRead):
    """There is no such table: nothing was ever delivered, as the first delivery makes it."""
