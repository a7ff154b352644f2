"""Redis targets, with Sentinel or Cluster where there is one."""
