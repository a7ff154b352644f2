"""What a target holds of a bucket, as ROWS: one file for each kind of store."""

import re

from pyspark.sql import DataFrame, SparkSession

from app.config.targets.base import NamespaceSettings, TargetSettings
from app.config.targets.elasticsearch import ElasticsearchSettings
from app.config.targets.mysql import MysqlSettings
from app.config.targets.postgresql import PostgresSettings
from app.config.targets.redis import RedisSettings
from spark_jobs.schemas import ROWS
from spark_jobs.stores import elasticsearch, mysql, postgresql, redis
from spark_jobs.stores.base import CannotRead, NoTable

_NO_TEXT = re.compile("[\0\ud800-\udfff]")

__all__ = ["CannotRead", "rows"]


def rows(spark: SparkSession, settings: TargetSettings, bucket: str, *, tasks: int) -> DataFrame:
    """ROWS of the target, read by `tasks` at once where the store allows it; none where nothing was ever delivered.

    The bucket's name may be any text. Raises `CannotRead`.
    """
    if _NO_TEXT.search(bucket):
        raise CannotRead("no target holds a bucket of this name: it is no text that a database can hold")
    try:
        return _rows(spark, settings, bucket, tasks)
    except NoTable:
        return spark.createDataFrame([], ROWS)


def _rows(spark: SparkSession, settings: TargetSettings, bucket: str, tasks: int) -> DataFrame:
    if not isinstance(settings, NamespaceSettings) or settings.format != "namespace":
        raise CannotRead("only targets of format namespace hold what a bucket holds; this one records events")
    if isinstance(settings, PostgresSettings):
        return postgresql.rows(spark, settings, bucket, tasks=tasks)
    if isinstance(settings, MysqlSettings):
        return mysql.rows(spark, settings, bucket, tasks=tasks)
    if isinstance(settings, RedisSettings):
        return redis.rows(spark, settings, bucket)
    if isinstance(settings, ElasticsearchSettings):
        return elasticsearch.rows(spark, settings, bucket, tasks=tasks)
    raise CannotRead(f"of {settings.type_name} targets nobody knows how to read what they hold")
