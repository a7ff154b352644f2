"""Check the service: `bucketwire doctor` and `GET /v1/doctor` run the same checks."""
