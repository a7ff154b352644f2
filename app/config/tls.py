"""The one way to a TLS context: the same settings mean the same at every target, whoever connects."""

import ssl


class BadFile(Exception):
    """A file of certificates or keys cannot be used; the message names the setting and the file."""


def context(ca: str = "", *, skip_verify: bool = False, client_cert: str = "", client_key: str = "") -> ssl.SSLContext:
    """A client's context: TLS 1.2 or later, host name checked.

    With `ca` (a PEM file) only its authorities are trusted, else the system's. Raises `BadFile`.
    """
    try:
        made = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise BadFile(f"tls_ca: {ca} cannot be used as PEM certificates: {_words(error)}") from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if skip_verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if client_cert:
        try:
            # An encrypted key would make OpenSSL ask at the terminal; the empty password makes it fail instead.
            made.load_cert_chain(client_cert, client_key or None, password="")
        except (OSError, ssl.SSLError) as error:
            raise BadFile(
                f"client_cert {client_cert} and client_key {client_key} cannot be used as an unencrypted PEM pair: "
                f"{_words(error)}"
            ) from error
    return made


def _words(error: OSError) -> str:
    return error.strerror or str(error)
