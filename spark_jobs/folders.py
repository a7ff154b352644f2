"""Folders that driver and executors reach by the same URL: on this machine, or in any file system that Spark reaches.

Without a scheme Spark takes a path for one of the cluster's default file system (`fs.defaultFS`), such as HDFS, so
every path that it gets has one. Files of other schemes than `file:` are written and deleted by Spark's Hadoop client,
which has the settings and credentials by which executors reach them.
"""

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has none
from pyspark.sql import SparkSession

from app.config.errors import REDACTED
from spark_jobs.errors import root_cause

_FILE = "file:"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_LOGIN = re.compile(r"//[^/@]+@")
_GLOB = re.compile(r"([{}\[\]*?\\])")
_CHUNK = 1 << 18  # bytes


class NotShared(Exception):
    """Driver and executors cannot both use a folder; the message says why and what to do."""


def spark_url(location: str | Path) -> str:
    """Return a path of this machine as a URL with its scheme; a URL stays as it is."""
    text = str(location)
    return text if _SCHEME.match(text) else f"{_FILE}//{Path(text).absolute()}"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder by its URL, which may not exist yet. `str()` of one on this machine is its path."""

    url: str
    spark: SparkSession | None = field(default=None, repr=False, compare=False)  # of other file systems

    @classmethod
    def of(cls, location: str | Path, spark: SparkSession | None = None) -> Self:
        """Return the folder at a path or a URL."""
        return cls(spark_url(location).rstrip("/"), spark)

    def __truediv__(self, name: str) -> Self:
        return type(self)(f"{self.url}/{name}", self.spark)

    def __str__(self) -> str:
        return self.url if self.path is None else str(self.path)

    @property
    def path(self) -> Path | None:
        """Its path if it is on this machine."""
        return Path(re.sub("^file:/+", "/", self.url)) if self.url.startswith(_FILE) else None

    @property
    def name(self) -> str:
        """The last part of its URL."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        """The folder in which it is."""
        return type(self)(self.url.rpartition("/")[0], self.spark)

    @property
    def reading_url(self) -> str:
        """Its URL for Spark's readers, which take some characters for patterns."""
        return _GLOB.sub(r"\\\1", self.url)

    def write(self, name: str, texts: Iterable[str]) -> int:
        """Write a new file in it of texts, of which a few are in memory at a time, and return the file's size."""
        if self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / name).open("x", encoding="utf-8", newline="") as file:
                file.writelines(texts)
            return (self.path / name).stat().st_size
        system, place = (self / name)._hadoop()
        stream, chunk, size = system.create(place, False), bytearray(), 0
        try:
            for text in texts:
                chunk += text.encode()
                if len(chunk) >= _CHUNK:
                    stream.write(bytes(chunk))
                    size += len(chunk)
                    chunk.clear()
            stream.write(bytes(chunk))
        finally:
            stream.close()
        return size + len(chunk)

    def read(self, name: str) -> str:
        """Return the text of a small file in it."""
        if self.path is not None:
            return (self.path / name).read_text(encoding="utf-8")
        if self.spark is None:
            raise RuntimeError(f"{self.url} needs a session")  # of our own code
        [row] = self.spark.read.text((self / name).reading_url, wholetext=True).collect()
        return str(row[0])

    def names(self) -> list[str]:
        """Return the names of what is in it, none if it does not exist."""
        if self.path is not None:
            return [child.name for child in self.path.iterdir()] if self.path.is_dir() else []
        system, place = self._hadoop()
        return [child.getPath().getName() for child in system.listStatus(place)] if system.exists(place) else []

    def size(self) -> int:
        """Return the bytes of all files in it and in folders in it."""
        if self.path is not None:
            return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())
        system, place = self._hadoop()
        return int(system.getContentSummary(place).getLength())

    def delete(self) -> bool:
        """Delete it with what is in it, if it exists; return whether nothing of it is left."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            return not self.path.exists()
        try:
            system, place = self._hadoop()
            return bool(system.delete(place, True)) or not system.exists(place)
        except Py4JJavaError:
            return False

    def check(self) -> None:
        """Raise `NotShared` if the folder cannot be reached."""
        if self.path is not None:
            return
        try:
            system, place = self._hadoop()
            system.exists(place)
        except Py4JJavaError as error:
            shown = _LOGIN.sub(f"//{REDACTED}@", self.url)
            raise NotShared(f"{shown} cannot be reached: {root_cause(error)}") from None

    def _hadoop(self) -> tuple[Any, Any]:
        """Return Hadoop's file system and path: no public interface of Spark's writes or deletes a file."""
        if self.spark is None:
            raise RuntimeError(f"{self.url} needs a session")  # of our own code
        if not hasattr(self.spark, "_jvm"):
            raise NotShared(
                f"{self.url} cannot be written through Spark Connect; give a folder that this machine shares with it"
            )
        place = self.spark._jvm.org.apache.hadoop.fs.Path(self.url)  # type: ignore[union-attr]
        return place.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration()), place
