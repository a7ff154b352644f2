"""The HTTP API: frontends post events, and operators inspect, change and monitor.

`application` assembles it for the server, `in_process` runs single routes for the console and the command line.
"""
