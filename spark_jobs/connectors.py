"""Configure the JDBC connectors of a Spark session. Imports no Spark.

MySQL's driver reads both MySQL and MariaDB: with MariaDB's driver and a `jdbc:mariadb:` URL Spark quotes columns so
that the server reads them as string literals, and every row comes back wrong without an error.
"""

from collections.abc import Mapping
from pathlib import Path

POSTGRESQL = "org.postgresql:postgresql:42.7.14"
MYSQL = "com.mysql:mysql-connector-j:9.4.0"
COORDINATES = (POSTGRESQL, MYSQL)


def jar_name(coordinates: str) -> str:
    """Return the file name under which a connector is published."""
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"


def options(folder: str) -> Mapping[str, str]:
    """Return Spark's settings for the connectors: the files in `folder`; without one, downloads from Maven Central.

    Raises `FileNotFoundError` with the first file that is missing in the folder.
    """
    if not folder:
        return {"spark.jars.packages": ",".join(COORDINATES)}
    files = [Path(folder) / jar_name(coordinates) for coordinates in COORDINATES]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"BUCKETWIRE_SPARK_JARS: {file} does not exist; add it, or unset the setting")
    return {"spark.jars": ",".join(map(str, files))}
