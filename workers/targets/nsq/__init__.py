"""NSQ."""

from workers.targets.nsq.target import NsqTarget

__all__ = ["NsqTarget"]
