"""TLS of a client: trusted authority, own certificate, and readable reasons for failed handshakes."""

from __future__ import annotations

import os
import ssl
from typing import Final

from pydanube_core.errors import InvalidArgument

from pydanube.wire.endpoint import Tls

CLOSED_AFTER_HANDSHAKE: Final = (
    "it closed the connection right after the handshake, as a broker does that requires a client's certificate and got "
    "none, or one that its tls.client_ca did not make. Give tls=Tls(cert=…, key=…), --cert and --tls-key"
)
#: OpenSSL's X509_V_ERR_…
_UNKNOWN_AUTHORITY: Final = frozenset((18, 19, 20, 21))
_EXPIRED: Final = 10
_NOT_YET: Final = 9
_WRONG_NAME: Final = frozenset((62, 64))


def tls_from_environment() -> Tls | None:
    """Return the files named by `DANUBE_CA`, `DANUBE_CERT`, `DANUBE_KEY` (PEM). None if none is set."""
    ca, cert, key = (os.environ.get(f"DANUBE_{name}") or None for name in ("CA", "CERT", "KEY"))
    return None if (ca, cert, key) == (None, None, None) else Tls(ca=ca, cert=cert, key=key)


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for a client's TLS.

    Raises:
        InvalidArgument: a file cannot be read, or is invalid.
    """
    if tls.key is not None and tls.cert is None:
        raise InvalidArgument("tls: a key goes with a certificate. Give cert too", field="tls", value=tls.key)
    authorities = _read_pem(tls.ca)
    _read_pem(tls.cert)
    _read_pem(tls.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        if authorities is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=authorities.decode())
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (ssl.SSLError, ValueError) as error:
        name = next((os.path.basename(each) for each in (tls.cert, tls.ca) if each is not None), "")
        raise InvalidArgument(
            f"tls: {name} is no certificate in PEM, or not of that key: {error}", field="tls", value=name
        ) from error
    return context


def tls_failure(error: ssl.SSLError) -> str:
    """Return what is wrong with a handshake, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code == _EXPIRED:
            return "its certificate has expired. Renew it there, or set this machine's clock"
        if code == _NOT_YET:
            return "its certificate is not valid yet. Set this machine's clock, or the one it was made on"
        if code in _WRONG_NAME:
            return (
                f"its certificate is for another name ({error.verify_message.rstrip('.')}). Dial a name that is in it, "
                "or make one with that name (`danube tls init --hosts`)"
            )
        if code in _UNKNOWN_AUTHORITY:
            return (
                "its certificate is of an authority that is not trusted here. Name the authority's file: "
                "tls=Tls(ca=…), --ca or DANUBE_CA"
            )
        return f"its certificate was not accepted: {error.verify_message}"
    match (error.reason or "").upper():
        case "WRONG_VERSION_NUMBER" | "RECORD_LAYER_FAILURE" | "HTTP_REQUEST" | "PACKET_LENGTH_TOO_LONG":
            return "it does not speak TLS. Write http:// in place of https://"
        case "TLSV13_ALERT_CERTIFICATE_REQUIRED" | "SSLV3_ALERT_HANDSHAKE_FAILURE":
            return "it requires a client's certificate. Give tls=Tls(cert=…, key=…), --cert and --key"
        case "TLSV1_ALERT_UNKNOWN_CA" | "SSLV3_ALERT_BAD_CERTIFICATE" | "SSLV3_ALERT_CERTIFICATE_UNKNOWN":
            return "it does not accept our certificate: another authority made it than its tls.client_ca"
        case "SSLV3_ALERT_CERTIFICATE_EXPIRED":
            return "it does not accept our certificate: it has expired"
        case _:
            return f"TLS: {error.reason or error}"


def _read_pem(path: str | None) -> bytes | None:
    """Return the content of a file of certificates or keys.

    Raises:
        InvalidArgument: it cannot be read.
    """
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgument(f"tls: cannot read {path}: {error}", field="tls", value=path) from error
