"""Errors of all stores."""


class CannotRead(Exception):
    """The target's rows cannot be read; the message says why and what to do."""


class NoTable(CannotRead):
    """The table does not exist: nothing was delivered yet, because the first delivery creates it."""
