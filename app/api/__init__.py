"""The HTTP API: frontends post events, and operators inspect, change and monitor.

`app.server` serves it, `in_process` runs single routes for the console and the command line.
"""
