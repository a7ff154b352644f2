"""What both command lines, `app.cli` and `spark_jobs`, are made of: contexts, output, errors, parameter types."""


class CommandError(Exception):
    """The command stops; the message says why and what to do."""
