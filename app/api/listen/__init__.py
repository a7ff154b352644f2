"""ListenNotification (reference §8): events as lines of JSON to whoever keeps a connection open.

A stream holds no thread of gunicorn's: its socket is handed over to the one event loop of the process. One more thread
follows the log for all streams of the process together; without streams neither does anything.
"""
