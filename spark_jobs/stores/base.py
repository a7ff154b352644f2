"""What the stores have in common."""


class CannotRead(Exception):
    """What a target holds cannot be read; the message says why and what can be done."""
