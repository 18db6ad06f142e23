"""An Apache Kafka whose listeners require TLS, SASL or both, and the certificates for it."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.support.peers import NEVER_KILLED, KafkaBroker, free_ports, locked

PASSWORDS = {"alice": 'alice-secret "quoted" ü', "bob": "bob-secret", "carol": "carol-secret"}

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def quoted(text: str) -> str:
    """Text as it is written in a login line."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def login(module: str, **options: str) -> str:
    """A line as in `sasl.jaas.config`."""
    return f"{module} required {' '.join(f'{name}={quoted(value)}' for name, value in options.items())};"


@dataclass
class Certificates:
    """An authority, its certificates, and an untrusted one, as PEM files in a folder."""

    folder: Path
    authority: trustme.CA = field(default_factory=trustme.CA)
    stranger: trustme.CA = field(default_factory=trustme.CA)

    def path(self, name: str) -> Path:
        """The path of a file."""
        return self.folder / f"{name}.pem"

    def write(self) -> None:
        """Create all files: `ca`, `other-ca`, and keys with certificates: `broker`, `expired`, `elsewhere`, `client`,
        `other-client`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.authority.cert_pem.write_to_path(str(self.path("ca")))
        self.stranger.cert_pem.write_to_path(str(self.path("other-ca")))
        long_ago = datetime.now(UTC) - timedelta(days=2)
        self._pair("broker", self.authority.issue_cert("127.0.0.1", "localhost"))
        self._pair(
            "expired", self.authority.issue_cert("127.0.0.1", not_before=long_ago, not_after=long_ago + timedelta(1))
        )
        self._pair("elsewhere", self.authority.issue_cert("broker.example"))
        self._pair("client", self.authority.issue_cert("client@example.org", common_name="client"))
        self._pair("other-client", self.stranger.issue_cert("other@example.org", common_name="other"))

    def _pair(self, name: str, made: trustme.LeafCert) -> None:
        # Java only reads keys as PKCS#8.
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.path(name).write_bytes(plain + b"".join(blob.bytes() for blob in made.cert_chain_pems))


@dataclass
class SecureKafka:
    """One broker with a port for each kind of access: see `LISTENERS`."""

    folder: Path

    LISTENERS: ClassVar = {
        "TLS": "SSL",
        "MUTUAL": "SSL",
        "EXPIRED": "SSL",
        "ELSEWHERE": "SSL",
        "SASL": "SASL_PLAINTEXT",
        "SHORT": "SASL_PLAINTEXT",
        "BOTH": "SASL_SSL",
        "ONLY_SCRAM": "SASL_PLAINTEXT",
    }
    """SHORT trusts its clients only for TRUST_S, ONLY_SCRAM has only SCRAM-SHA-256."""

    TRUST_S = 7

    @classmethod
    def nowhere(cls) -> SecureKafka:
        """A broker that is never started."""
        return cls(Path("nowhere"))

    def __post_init__(self) -> None:
        self.certificates = Certificates(self.folder / "certificates")

    @cached_property
    def ports(self) -> dict[str, int]:
        """The port of each listener."""
        names = ["PLAINTEXT", *self.LISTENERS]
        return dict(zip(names, free_ports(len(names)), strict=True))

    def address(self, listener: str) -> str:
        """HOST:PORT of a listener."""
        return f"127.0.0.1:{self.ports[listener]}"

    @cached_property
    def broker(self) -> KafkaBroker:
        """The broker; its own port is PLAINTEXT."""
        (controller,) = free_ports(1)
        advertised = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **self.LISTENERS}
        settings = {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{advertised},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": advertised,
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            **NEVER_KILLED,
        }
        for name, kind in self.LISTENERS.items():
            of = f"listener.name.{name.lower()}."
            if "SSL" in kind:
                settings |= self._tls(of, {"EXPIRED": "expired", "ELSEWHERE": "elsewhere"}.get(name, "broker"))
            if "SASL" in kind:
                settings |= self._sasl(of)
        settings["listener.name.mutual.ssl.client.auth"] = "required"
        settings["listener.name.only_scram.sasl.enabled.mechanisms"] = "SCRAM-SHA-256"
        settings |= {
            f"listener.name.short.{name}.connections.max.reauth.ms": str(1000 * self.TRUST_S)
            for name in ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
        }
        users = [
            f"SCRAM-SHA-{size}=[name={name},iterations=4096,password={password}]"
            for name, password in PASSWORDS.items()
            for size in (256, 512)
        ]
        formatted = [word for user in users for word in ("--add-scram", user)]
        return KafkaBroker(self.folder / "kafka", settings, self.ports["PLAINTEXT"], format_options=formatted)

    def _tls(self, of: str, pair: str) -> dict[str, str]:
        return {
            f"{of}ssl.keystore.type": "PEM",
            f"{of}ssl.keystore.location": str(self.certificates.path(pair)),
            f"{of}ssl.truststore.type": "PEM",
            f"{of}ssl.truststore.location": str(self.certificates.path("ca")),
        }

    def _sasl(self, of: str) -> dict[str, str]:
        users = {f"user_{name}": password for name, password in PASSWORDS.items()}
        return {
            f"{of}plain.sasl.jaas.config": escaped(login(PLAIN, **users)),
            f"{of}scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
            f"{of}scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
            f"{of}oauthbearer.sasl.jaas.config": login(OAUTH, unsecuredLoginStringClaim_sub="broker"),
        }


@contextlib.contextmanager
def shared_secure_kafka(folder: Path) -> Iterator[SecureKafka]:
    """The broker that all workers of one test run share: the first to need it starts it, it ends after the last."""
    described = folder / "ports.json"
    kafka = SecureKafka(folder)
    with contextlib.ExitStack() as held:
        with locked(folder / "mutex"):
            held.enter_context(locked(folder / "kafka" / "users", fcntl.LOCK_SH))
            if described.exists():
                kafka.ports = json.loads(described.read_text())
            else:
                kafka.certificates.write()
                kafka.broker.start()
                described.write_text(json.dumps(kafka.ports))
        yield kafka


def escaped(text: str) -> str:
    """Text as it is written in a properties file."""
    return text.replace("\\", "\\\\").encode("ascii", "backslashreplace").decode().replace("\\x", "\\u00")
