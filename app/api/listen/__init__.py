"""ListenNotification (reference §8): stream events as lines of JSON over an open connection.

A stream occupies no gunicorn thread: its socket is handed over to the event loop of the process. One more thread reads
the event log for all streams of the process; without streams both are idle.
"""
