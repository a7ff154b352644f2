"""The connectors that Spark needs beside itself: their versions, and how a session gets them. Imports no Spark.

MySQL and MariaDB are both read by MySQL's own driver: with MariaDB's and a `jdbc:mariadb:` URL Spark quotes columns so
that the server takes them for texts, and every row comes back wrong without an error.
"""

from collections.abc import Mapping
from pathlib import Path

POSTGRESQL = "org.postgresql:postgresql:42.7.14"
MYSQL = "com.mysql:mysql-connector-j:9.4.0"
COORDINATES = (POSTGRESQL, MYSQL)


def jar_name(coordinates: str) -> str:
    """The file that a connector is published as."""
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"


def options(folder: str) -> Mapping[str, str]:
    """Spark's settings for the connectors: the files in `folder`, or without one from Maven Central, once.

    Raises `FileNotFoundError` naming the first file that the folder lacks.
    """
    if not folder:
        return {"spark.jars.packages": ",".join(COORDINATES)}
    files = [Path(folder) / jar_name(each) for each in COORDINATES]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"BUCKETWIRE_SPARK_JARS: {file} is not there; put it in, or leave the setting out")
    return {"spark.jars": ",".join(map(str, files))}
