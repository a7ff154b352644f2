"""The jobs' command lines: options are read, a session is opened, the result is told. Until then no Spark is needed."""
