"""The certificates of a port, read from files, and read again when the files change.

A new certificate applies to connections that begin after it was read. Open connections are not affected. If the files
cannot be read or do not match (they may be half-written), the last good ones stay in effect. This is logged once for
each state of the files.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydanube_core.errors import InvalidArgument
from pydanube_core.security.credential import Credential

from pydanube_broker.settings.security import Tls

log = logging.getLogger("pydanube.rpc")

VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """PEM files: the server's chain, its key, and the authority of clients' certificates (None: not requested)."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class Certificates:
    """See the module.

    Args:
        files: the files to read.
        client_auth: whether clients present a certificate: `none`, `optional`, `required`.
        protocols: the protocols inside TLS, for ALPN.

    Raises:
        InvalidArgument: a file cannot be read, or has the wrong content.
    """

    def __init__(self, files: CertificateFiles, *, client_auth: str, protocols: Sequence[str]) -> None:
        self._files = files
        self._verify = VERIFY[client_auth if files.client_ca is not None else "none"]
        self._protocols = list(protocols)
        self._seen = self._state()
        self.context = self._load()

    def look(self) -> bool:
        """Read the files again if they changed since the last look. Return whether new ones are in effect."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            self.context = self._load()
        except InvalidArgument as error:
            log.warning("certificates_not_read", extra={"error": str(error)})
            return False
        log.info("certificates_read", extra={"cert": str(self._files.cert)})
        return True

    def _load(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(self._protocols)
        try:
            name, path = "tls.cert", files.cert
            context.load_cert_chain(files.cert, files.key, password=_no_password)
            if files.client_ca is not None:
                name, path = "tls.client_ca", files.client_ca
                context.load_verify_locations(cafile=files.client_ca)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            with_key = f" with {files.key}" if name == "tls.cert" else ""
            raise InvalidArgument(
                f"{name}: {path}{with_key} cannot be used ({why}). Give PEM files that belong together and that this "
                "process may read, or make some with `danube tls init`",
                field=name,
                value=str(path),
            ) from None
        context.verify_mode = self._verify
        return context

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return a value that changes when the files change."""
        files = (self._files.cert, self._files.key, self._files.client_ca)
        return tuple(None if path is None else _stamp(path) for path in files)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _credentials(files: CertificateFiles) -> tuple[Credential, ...]:
    """Return the certificates that are in use, with their times. None without the library that reads them."""
    try:
        from cryptography import x509
    except ImportError:
        return ()
    found: list[Credential] = []
    for kind, path in (("certificate", files.cert), ("client_ca", files.client_ca)):
        if path is None:
            continue
        try:
            chain = x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError):
            continue
        found += [
            Credential(
                kind=kind,
                name=str(path),
                from_ms=int(each.not_valid_before_utc.timestamp() * 1000),
                until_ms=int(each.not_valid_after_utc.timestamp() * 1000),
            )
            for each in chain
        ]
    return tuple(found)


def _no_password() -> str:
    """Fail for an encrypted key, because OpenSSL would prompt on the terminal."""
    raise ValueError("the key is encrypted, and a broker cannot enter a password")


class PortCertificates:
    """The certificates of a broker's ports. gRPC ports may request client certificates, HTTP ports do not.

    Prometheus, browsers and the programs of AI assistants present tokens, if anything. `grpc` and `http` return the
    context in effect.
    """

    def __init__(self, files: CertificateFiles, client_auth: str) -> None:
        self._grpc = Certificates(files, client_auth=client_auth, protocols=("h2",))
        self._http = Certificates(files, client_auth="none", protocols=("http/1.1",))
        self._files = files
        self.credentials = _credentials(files)  # the certificates in use that expire

    def grpc(self) -> ssl.SSLContext:
        return self._grpc.context

    def http(self) -> ssl.SSLContext:
        return self._http.context

    def look(self) -> None:
        """Use files that changed. A handful of `stat` calls."""
        if self._grpc.look():
            self.credentials = _credentials(self._files)
        self._http.look()


def port_certificates(settings: Tls) -> PortCertificates | None:
    """Return the certificates of a broker's ports. None: plain text. Raises `InvalidArgument` for unusable files."""
    if settings.cert is None or settings.key is None:
        return None
    files = CertificateFiles(cert=settings.cert, key=settings.key, client_ca=settings.client_ca)
    return PortCertificates(files, settings.client_auth)
