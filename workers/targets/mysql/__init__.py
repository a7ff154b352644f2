"""MySQL and MariaDB."""

from workers.targets.mysql.target import MysqlTarget

__all__ = ["MysqlTarget"]
