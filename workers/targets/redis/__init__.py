"""Redis targets, with Sentinel or Cluster where there is one."""

from workers.targets.redis.target import RedisTarget

__all__ = ["RedisTarget"]
