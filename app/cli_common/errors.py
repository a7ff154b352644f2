"""The error with which a command stops."""


class CommandError(Exception):
    """The command stops; the message says why and what to do."""
