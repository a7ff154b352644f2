"""Build TLS contexts, so that the same settings mean the same for every target."""

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


class BadFile(Exception):
    """A certificate or key file is unusable; the message names the setting and the file."""


class Validity(NamedTuple):
    """From when to when a certificate is valid, in milliseconds since 1970."""

    begins_at: int
    ends_at: int


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


def validities_of_file(path: str) -> list[Validity]:
    """Return when a PEM file's certificates are valid. Raises `OSError` or `ValueError`."""
    from cryptography import x509  # noqa: PLC0415 - slow: only with TLS

    return [_validity(one) for one in x509.load_pem_x509_certificates(Path(path).read_bytes())]


def validity_of(certificate: bytes) -> Validity:
    """Return when a certificate in DER is valid. Raises `ValueError`, or another for odd ones."""
    from cryptography import x509  # noqa: PLC0415 - slow: only with TLS

    return _validity(x509.load_der_x509_certificate(certificate))


def _validity(read: "Certificate") -> Validity:
    begins, ends = read.not_valid_before_utc, read.not_valid_after_utc
    return Validity(int(begins.timestamp() * 1000), int(ends.timestamp() * 1000))


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
