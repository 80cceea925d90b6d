"""A certificate authority in a folder, with certificates for a broker and its clients: P-256.

For development and for small installations. With an authority of your own, use its certificates instead.

`danube tls init` makes one, with certificates of it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydanube.principal import default_principal
from pydanube_core.errors import AlreadyExists, InvalidArgument, MissingExtra
from pydanube_core.extras import install_command

from pydanube_cli.command import Common, command
from pydanube_cli.parameters import option
from pydanube_cli.ready import replace_file
from pydanube_cli.render import print_json

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 3650
SLACK: Final = timedelta(hours=1)  # clocks of other machines may be behind


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFolder:
    """A folder with an authority, and a certificate and a key each of server and client."""

    path: Path

    def file(self, name: str) -> Path:
        return self.path / name

    def make(self, hosts: Sequence[str], *, principal: str, days: int, again: bool) -> None:
        """Make missing files. `again`: replace the pairs of server and client, under the same authority.

        Raises:
            AlreadyExists: there is a server's certificate, and `again` is False.
            InvalidArgument: a name is invalid, or the authority's files cannot be used.
            MissingExtra: `cryptography` is not installed.
        """
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise MissingExtra(
                f"certificates need more than the base installation: {install_command('security')}",
                extra="security",
            ) from None
        server = self.file("server.crt")
        if server.exists() and not again:
            raise AlreadyExists(
                f"{server} exists: use it, choose another --dir, or make it again with --force "
                "(of the same authority, so that clients need nothing new)",
                field="dir",
                value=str(self.path),
            )
        names = [_name(host) for host in hosts]
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = self._authority()
        self._pair("server", "danube broker", names, days, authority, server=True)
        self._pair("client", principal, [], days, authority, server=False)

    def _authority(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        if not self.file("ca.crt").exists():
            return self._new_authority()
        try:
            certificate = x509.load_pem_x509_certificate(self.file("ca.crt").read_bytes())
            key: Any = load_pem_private_key(self.file("ca.key").read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise InvalidArgument(
                f"the authority in {self.path} (ca.crt, ca.key) cannot be used: {error}; choose another --dir",
                field="dir",
                value=str(self.path),
            ) from None
        return certificate, key

    def _new_authority(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("danube authority")
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        built = (
            _begun(subject, subject, key, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        certificate = _signed(built, key)
        self._write("ca", certificate, key)
        return certificate, key

    def _pair(
        self,
        name: str,
        subject: str,
        hosts: Sequence[x509.GeneralName],
        days: int,
        authority: tuple[x509.Certificate, EllipticCurvePrivateKey],
        *,
        server: bool,
    ) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        issuer, issuer_key = authority
        key = ec.generate_private_key(ec.SECP256R1())
        # Brokers are each other's clients too.
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] + [ExtendedKeyUsageOID.SERVER_AUTH] * server
        built = (
            _begun(_subject(subject), issuer.subject, key, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
            )
        )
        if hosts:
            built = built.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        self._write(name, _signed(built, issuer_key), key)

    def _write(self, name: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        replace_file(self.file(f"{name}.key"), secret, mode=0o600, durable=True)
        public = certificate.public_bytes(Encoding.PEM)
        replace_file(self.file(f"{name}.crt"), public, mode=0o644, durable=True)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + timedelta(days=days))
    )


def _signed(built: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return built.sign(key, hashes.SHA256())


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name(host: str) -> x509.GeneralName:
    """Return a host as a certificate names it. Raises `InvalidArgument`."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        encoded = host.encode("idna").decode() if not host.startswith("*.") else host
        if (
            not encoded
            or any(not part or len(part) > 63 for part in encoded.split("."))
            or "/" in host
            or ":" in host
        ):
            raise ValueError("it is no host's name")
        return x509.DNSName(encoded)
    except ValueError as error:  # UnicodeError is one
        raise InvalidArgument(
            f"--hosts {host!r}: {error}; write names and addresses with commas between, like localhost,10.0.0.5",
            field="hosts",
            value=host,
        ) from None


HOSTS: Final = "localhost,127.0.0.1,::1"
DAYS: Final = 365

HostsOption = Annotated[str, option("--hosts", "NAME,…", "Names and addresses that clients dial.")]
DirOption = Annotated[Path, option("--dir", "DIR", "Where the files are made.")]


@command(
    examples=[
        "danube tls init",
        "danube tls init --hosts broker.example.org,10.0.0.5 --dir ./certificates",
        "danube tls init --force   # renew: running brokers load the new files",
    ]
)
def init(
    *,
    common: Common,
    hosts: HostsOption = HOSTS,
    dir: DirOption = Path("danube-security"),
    principal: Annotated[
        str | None, option("--principal", "NAME", "Whom the client's certificate names [default: user@host]")
    ] = None,
    days: Annotated[int, option("--days", min=1, max=3650, help="How long they are valid.")] = DAYS,
    force: Annotated[
        bool, option("--force", help="Make the certificates again, of the same authority.")
    ] = False,
) -> None:
    """Make a certificate authority, and certificates of it for a broker and a client."""
    folder = CertificateFolder(path=dir.expanduser().absolute())
    name = principal or common.principal or default_principal()
    # RFC 5280: a common name has 64 characters at most
    if not name.isprintable() or not 1 <= len(name) <= 64:
        raise InvalidArgument(
            "--principal: use 1-64 printable characters", field="principal", value=name[:100]
        )
    folder.make([host.strip() for host in hosts.split(",")], principal=name, days=days, again=force)
    ca, cert, key = (str(folder.file(name)) for name in ("ca.crt", "server.crt", "server.key"))
    client_cert, client_key = (str(folder.file(f"client.{end}")) for end in ("crt", "key"))
    if common.as_json:
        print_json(
            {"ca": ca, "cert": cert, "key": key, "client_cert": client_cert, "client_key": client_key,
             "principal": name}
        )  # fmt: skip
        return
    print(
        f"""Made {folder.path}: ca, server and client, each a .crt and a .key (keep the keys to yourself).

The broker, in its settings file (danube up --config FILE):
  [tls]
  cert = "{cert}"
  key = "{key}"

Clients:
  export DANUBE_CA={ca}
  danube topics list --admin https://localhost:50051
  connect("https://localhost:6650", tls=Tls(ca="{ca}"))"""
    )
