"""What the API calls a resource, declared once: its members, the filters of its lists, and a command's columns."""
