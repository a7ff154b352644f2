"""Redis sources: a list or a stream, with Sentinel or Cluster where there is one."""

from workers.sources.redis.source import RedisSource

__all__ = ["RedisSource"]
