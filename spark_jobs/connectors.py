"""Configure the libraries of a Spark session: JDBC drivers, and Iceberg for the tables. Imports no Spark.

MySQL's driver reads both MySQL and MariaDB: with MariaDB's driver and a `jdbc:mariadb:` URL Spark quotes columns so
that the server reads them as string literals, and every row comes back wrong without an error.

A JDBC driver's properties name Java classes to load and files to read or to write, and one in a URL may win over the
same one beside it. So a URL has a host, a port and a database, and everything else is passed as a property: no part of
a target's settings can become one.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from app.config.fields.addresses import check_host

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
# What a server may ask of MySQL's driver, and what the driver may load or read besides: all of it off.
MYSQL_SAFE = {
    "allowLoadLocalInfile": "false",
    "allowUrlInLocalInfile": "false",
    "allowLoadLocalInfileInPath": "",
    "autoDeserialize": "false",
    "allowMultiQueries": "false",
    "useConfigs": "",
    "propertiesTransform": "",
    "queryInterceptors": "",
    "connectionLifecycleInterceptors": "",
    "exceptionInterceptors": "",
    "authenticationPlugins": "",
    "fallbackToSystemKeyStore": "false",  # whose certificates identify this host
    # They sign or send what they find in files of the host, or call a directory that the server names.
    "disabledAuthenticationPlugins": ",".join(
        f"authentication_{name}_client" for name in ("kerberos", "ldap_sasl", "oci", "openid_connect", "webauthn")
    ),
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


def mysql_url(host: str, port: int, database: str) -> str:
    """Return the URL of a database of MySQL or MariaDB. Raises `BadValue` for anything but a host."""
    return f"jdbc:mysql://{_place(host, port)}/{quote(database, safe='')}"


def postgresql_url(host: str, port: int, database: str) -> str:
    """Return the URL of a database of PostgreSQL. Raises `BadValue` for anything but a host."""
    return f"jdbc:postgresql://{_place(host, port)}/{quote(database, safe='')}"


def _place(host: str, port: int) -> str:
    check_host(host)  # a driver does not decode it, so it cannot be encoded
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
