"""PostgreSQL."""

from workers.targets.postgresql.target import PostgresTarget

__all__ = ["PostgresTarget"]
