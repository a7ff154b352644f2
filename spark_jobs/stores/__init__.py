"""Read a target's rows of a bucket as ROWS: one module, named as the type, for each with a format `namespace`."""

import re
import socket
from contextlib import suppress
from importlib import import_module
from types import ModuleType

from pyspark.sql import DataFrame, SparkSession

from app.config.errors import BadValue
from app.config.networks import is_link_local
from app.config.targets.base import NamespaceSettings, TargetSettings
from spark_jobs.frames import ROWS

_INVALID_TEXT = re.compile("[\0\ud800-\udfff]")


class CannotRead(Exception):
    """The target's rows cannot be read; the message says why and what to do."""


class NoTable(CannotRead):
    """The table does not exist: nothing was delivered yet, because the first delivery creates it."""


def rows(spark: SparkSession, settings: TargetSettings, bucket: str, *, tasks: int) -> DataFrame:
    """Return the target's ROWS, read by `tasks` at once if the store allows it; empty before the first delivery.

    The bucket's name may be any text. Raises `CannotRead`.
    """
    if _INVALID_TEXT.search(bucket):
        raise CannotRead("no target has rows of a bucket of this name: databases cannot store it as text")
    try:
        return _rows(spark, settings, bucket, tasks)
    except NoTable:
        return spark.createDataFrame([], ROWS)
    except BadValue as error:
        raise CannotRead(f"{settings.title}: the address {error.problem}; {error.hint}") from None


def refuse_link_local(settings: TargetSettings) -> None:
    """Raise `CannotRead` if a name or address of the target leads to this link, or to a cloud's metadata service."""
    for host in filter(None, _store(settings).hosts(settings)):
        with suppress(OSError, UnicodeError):  # a socket's path, or a name that nobody knows now
            for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                if is_link_local(address := str(entry[4][0])):
                    raise CannotRead(f"{address} is link-local, where a target of a limited token may not be")


def has_single_rows(settings: TargetSettings) -> bool:
    """Return whether one reading probably finds each key once: that of a table, not that of a hash or an index."""
    return bool(_store(settings).HAS_SINGLE_ROWS)


def _store(settings: TargetSettings) -> ModuleType:
    return import_module(f"{__name__}.{settings.type_name}")


def _rows(spark: SparkSession, settings: TargetSettings, bucket: str, tasks: int) -> DataFrame:
    if not isinstance(settings, NamespaceSettings) or settings.format != "namespace":
        given = getattr(settings, "format", "access")
        raise CannotRead(f"only targets of format namespace can be compared with a bucket; this one has format {given}")
    rows: DataFrame = _store(settings).rows(spark, settings, bucket, tasks=tasks)
    return rows
