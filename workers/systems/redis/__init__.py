"""Redis, with Sentinel or Cluster where there is one."""
