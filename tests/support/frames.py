"""Frames of a few rows, as Spark itself has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType


def frame_of(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: StructType | str) -> DataFrame:
    """A frame of these rows, which no Python worker reads.

    Those of a frame that Spark makes of Python's objects cost each job that reads it half a second of processor time.
    """
    struct = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    if not rows:  # of an empty Arrow table a plan would know that it is empty
        java, jvm_context = spark._jsparkSession, spark.sparkContext._jsc
        return DataFrame(java.createDataFrame(jvm_context.emptyRDD(), java.parseDataType(struct.json())), spark)
    columns = zip(zip(*rows, strict=True), struct, strict=True)
    arrays = [pa.array(list(values), type=to_arrow_type(field.dataType)) for values, field in columns]
    return spark.createDataFrame(pa.table(arrays, names=struct.names), schema=struct)
