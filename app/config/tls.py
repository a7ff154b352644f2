"""Build TLS contexts, so that the same settings mean the same for every target."""

import ssl
from pathlib import Path


class BadFile(Exception):
    """A certificate or key file is unusable; the message names the setting and the file."""


NAMES = ("tls_ca", "client_cert", "client_key")  # what most types of targets call the files


def context(
    ca: str = "",
    *,
    skip_verify: bool = False,
    client_cert: str = "",
    client_key: str = "",
    names: tuple[str, str, str] = NAMES,
) -> ssl.SSLContext:
    """Build a client's TLS context: TLS 1.2 or later, with a host name check.

    With `ca` (a PEM file) only its certificates are trusted, else the system's. Raises `BadFile`, which calls the files
    by their `names` in the settings.
    """
    try:
        tls_context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise BadFile(f"{names[0]}: {ca} cannot be used as PEM certificates: {_describe_error(error)}") from error
    # Python takes it from SSLKEYLOGFILE, and would write the keys of every session there.
    tls_context.keylog_filename = None  # type: ignore[assignment]  # the stubs do not know that it can be unset
    tls_context.minimum_version = ssl.TLSVersion.TLSv1_2
    verify_alike(tls_context)
    if skip_verify:
        tls_context.check_hostname = False
        tls_context.verify_mode = ssl.CERT_NONE
    if client_cert:
        try:
            # For an encrypted key OpenSSL would prompt on the terminal; with the empty password it fails instead.
            tls_context.load_cert_chain(client_cert, client_key or None, password="")
        except (OSError, ssl.SSLError) as error:
            raise BadFile(
                f"{names[1]} {client_cert} and {names[2]} {client_key} cannot be used as an unencrypted PEM pair: "
                f"{_describe_error(error)}"
            ) from error
    return tls_context


def ends_of_file(path: str) -> list[float]:
    """Return the ends of a PEM file's certificates, in seconds since 1970. Raises `OSError` or `ValueError`."""
    from cryptography import x509  # noqa: PLC0415 - slow: only with TLS

    read = x509.load_pem_x509_certificates(Path(path).read_bytes())
    return [certificate.not_valid_after_utc.timestamp() for certificate in read]


def end_of(certificate: bytes) -> float:
    """Return the end of a certificate in DER, in seconds since 1970. Raises `ValueError`, or another for odd ones."""
    from cryptography import x509  # noqa: PLC0415 - slow: only with TLS

    return x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()


def verify_alike(tls_context: ssl.SSLContext) -> ssl.SSLContext:
    """Return the context, which then verifies certificates as Go does, alike on every version of Python.

    From 3.13 on its strict check refuses private authorities whose certificate lacks an extension; before, an
    intermediate authority alone was not enough.
    """
    tls_context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    tls_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return tls_context


def _describe_error(error: OSError) -> str:
    return error.strerror or str(error)
