"""Certificates by openssl: an authority, and a server and a client by it."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NAMES = {"server": "DNS:localhost,IP:127.0.0.1", "client": "URI:spiffe://danube/worker"}


def make_certificates(folder: Path) -> Path:
    """Write `ca`, `server` and `client`, each as `.pem` with its `.key`, into the folder and return it."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    # The key usage here and the key identifiers below: Python 3.13 and newer check by VERIFY_X509_STRICT.
    openssl(
        "req", "-x509", *_NEW, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    for name, names in _NAMES.items():
        openssl("req", *_NEW, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        extensions = f"subjectAltName={names}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        (folder / "names").write_text(extensions)
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-out", f"{name}.pem", "-extfile", "names",
        )  # fmt: skip
    return folder
