"""Configure the libraries of a Spark session: JDBC drivers, and Iceberg for the tables. Imports no Spark.

MySQL's driver reads both MySQL and MariaDB: with MariaDB's driver and a `jdbc:mariadb:` URL Spark quotes columns so
that the server reads them as string literals, and every row comes back wrong without an error.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

POSTGRESQL = "org.postgresql:postgresql:42.7.14"
MYSQL = "com.mysql:mysql-connector-j:9.4.0"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"  # of the Spark that pyproject.toml pins
ICEBERG_S3 = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
DRIVERS = (POSTGRESQL, MYSQL)
# Every library that a job may need, with the SHA-256 of its file.
SHA256 = {
    POSTGRESQL: "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
    MYSQL: "49ed93c8b2bea9cb0929b85a8a28837b191d0f8eac6919fdcef16e36e2cd53b3",
    ICEBERG: "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
    ICEBERG_S3: "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
}


def jar_name(coordinates: str) -> str:
    """Return the file name under which a library is published."""
    _, artifact, version = coordinates.split(":")
    return f"{artifact}-{version}.jar"


def check(folder: str | Path, libraries: Sequence[str] = tuple(SHA256)) -> None:
    """Raise `ValueError` unless the files of the libraries in a folder are what they were; `FileNotFoundError` too."""
    for coordinates in libraries:
        with (Path(folder) / jar_name(coordinates)).open("rb") as jar:
            if hashlib.file_digest(jar, "sha256").hexdigest() != SHA256[coordinates]:
                raise ValueError(f"the file of {coordinates} has another SHA-256 than it had")


def options(folder: str, libraries: Sequence[str] = DRIVERS) -> Mapping[str, str]:
    """Return Spark's settings for the libraries: the files in `folder`; without one, downloads from Maven Central.

    Raises `FileNotFoundError` with the first file that is missing in the folder.
    """
    if not folder:
        return {"spark.jars.packages": ",".join(libraries)}
    files = [Path(folder) / jar_name(coordinates) for coordinates in libraries]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"BUCKETWIRE_SPARK_JARS: {file} does not exist; add it, or unset the setting")
    return {"spark.jars": ",".join(map(str, files))}
