"""MinIO's admin API, version 3: `mc admin config`, `mc admin info` and `mc admin service restart`, unmodified."""
