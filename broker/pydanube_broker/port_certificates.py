"""The certificates of a broker's ports, from `[tls]`: the gRPC ports may ask clients for theirs, the HTTP ports do not.

Prometheus, browsers and the programs of AI assistants show tokens, if anything.
"""

from __future__ import annotations

import ssl

from pydanube_broker.rpc.certificates import CertificateFiles, Certificates
from pydanube_broker.settings_security import Tls


class PortCertificates:
    """See the module; `grpc` and `http` give the context in force."""

    def __init__(self, files: CertificateFiles, client_auth: str) -> None:
        self._grpc = Certificates(files, client_auth=client_auth, protocols=("h2",))
        self._http = Certificates(files, client_auth="none", protocols=("http/1.1",))

    def grpc(self) -> ssl.SSLContext:
        return self._grpc.context

    def http(self) -> ssl.SSLContext:
        return self._http.context

    def look(self) -> None:
        """Take files that changed. A handful of `stat` calls."""
        self._grpc.look()
        self._http.look()


def port_certificates(settings: Tls) -> PortCertificates | None:
    """None: plain text. Raises `InvalidArgument` where the files cannot be used."""
    if settings.cert is None or settings.key is None:
        return None
    files = CertificateFiles(cert=settings.cert, key=settings.key, client_ca=settings.client_ca)
    return PortCertificates(files, settings.client_auth)
