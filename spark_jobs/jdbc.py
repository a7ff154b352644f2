"""Build JDBC URLs from settings of targets, of which no part can become a property of the driver.

A driver's properties name Java classes to load and files to read or to write, and one in a URL may win over the same
one beside it. So a URL has a host, a port and a database, and everything else is passed as a property.
"""

from urllib.parse import quote

from app.config.fields.addresses import check_host

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


def mysql_url(host: str, port: int, database: str) -> str:
    """Return the URL of a database of MySQL or MariaDB. Raises `BadValue` for anything but a host."""
    return f"jdbc:mysql://{_place(host, port)}/{quote(database, safe='')}"


def postgresql_url(host: str, port: int, database: str) -> str:
    """Return the URL of a database of PostgreSQL. Raises `BadValue` for anything but a host."""
    return f"jdbc:postgresql://{_place(host, port)}/{quote(database, safe='')}"


def _place(host: str, port: int) -> str:
    check_host(host)  # a driver does not decode it, so it cannot be encoded
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
