"""Count both sides of a comparison while they are compared, and notice whether a side has a key more than once."""

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)


class Sizes:
    """The sizes of both sides of a comparison, counted while they are compared."""

    def __init__(self) -> None:
        self._objects, self._rows, self._pairs = Observation(), Observation(), Observation()

    def of_objects(self, frame: DataFrame) -> DataFrame:
        """Count the frame as the objects."""
        return frame.observe(self._objects, F.count(F.lit(1)).alias("count"))

    def of_rows(self, frame: DataFrame) -> DataFrame:
        """Count the frame as the target's rows."""
        return frame.observe(self._rows, F.count(F.lit(1)).alias("count"))

    def of_pairs(self, frame: DataFrame) -> DataFrame:
        """Count the pairs of a full outer join of objects (`l_key`) and rows (`n_key`).

        It also makes sure that both sides are read to their ends: Spark turns a full outer join into another one where
        a condition behind it allows that, but not behind a count of its rows.
        """
        both = F.count(F.when(F.col("l_key").isNotNull() & F.col("n_key").isNotNull(), 1))
        return frame.observe(self._pairs, F.count(F.lit(1)).alias("count"), both.alias("matched"))

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of `objects` and of `target_rows`."""
        return {"objects": self._objects.get["count"], "target_rows": self._rows.get["count"]}

    @property
    def has_repeated_matches(self) -> bool:
        """Whether a key that both sides have is in one of them more than once.

        Of m entries and n rows of a key there are m * n pairs: as many as m + n - m * n only if both are 1.
        """
        pairs = self._pairs.get
        return bool(sum(self.counts.values()) != pairs["count"] + pairs["matched"])
