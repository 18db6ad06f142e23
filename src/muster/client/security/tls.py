"""TLS with the standard library: a context from the settings, and explanations of failed handshakes.

Certificates and keys are PEM. Java's own key stores (JKS), and PKCS#12, which the standard library does not read, are
recognized by their first bytes and refused with the command that converts them to PEM.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from muster.client.security.secret import Secret
from muster.client.security.settings import SecurityConfig
from muster.errors import ConfigError

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

_JKS: Final = b"\xfe\xed\xfe\xed"
_JCEKS: Final = b"\xce\xce\xce\xce"
_DER: Final = b"\x30"


def context(config: SecurityConfig) -> ssl.SSLContext:
    """The TLS context for these settings.

    Raises:
        ConfigError: a file cannot be read, is not PEM, or needs another password; a version or cipher is unknown.
    """
    name, text = _authorities(config)
    try:
        made = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{name} has no certificates in PEM: {_reason(error)}") from None
    if not config.ssl_endpoint_identification_algorithm:
        made.check_hostname = False
    made.minimum_version, made.maximum_version = _versions(config.ssl_enabled_protocols)
    if config.ssl_cipher_suites:
        _choose_ciphers(made, config.ssl_cipher_suites)
    _load_identity(made, config)
    return made


def _authorities(config: SecurityConfig) -> tuple[str, str | None]:
    """The setting that names the trusted authorities, and their certificates; None for the system's."""
    location, text = config.ssl_truststore_location, config.ssl_truststore_certificates
    if location and text:
        raise ConfigError("ssl_truststore_location and ssl_truststore_certificates are both set; set only one of them")
    if not location:
        return "ssl_truststore_certificates", text
    _refuse_type("ssl_truststore_type", config.ssl_truststore_type, location)
    return "ssl_truststore_location", _pem("ssl_truststore_location", location)


def _load_identity(made: ssl.SSLContext, config: SecurityConfig) -> None:
    location, chain, key = (
        config.ssl_keystore_location,
        config.ssl_keystore_certificate_chain,
        config.ssl_keystore_key,
    )
    if location and (chain or key):
        raise ConfigError("ssl_keystore_location and ssl_keystore_key are both set; set only one of them")
    if bool(chain) != bool(key):
        raise ConfigError("ssl_keystore_certificate_chain and ssl_keystore_key belong together; one is missing")
    if location:
        _refuse_type("ssl_keystore_type", config.ssl_keystore_type, location)
        _pem("ssl_keystore_location", location)
        _load_pair(made, "ssl_keystore_location", location, config.ssl_key_password)
    elif chain and key:
        with _as_file(f"{key.reveal()}\n{chain}\n") as path:
            _load_pair(made, "ssl_keystore_key", path, config.ssl_key_password)


def _load_pair(made: ssl.SSLContext, name: str, path: str, password: Secret | None) -> None:
    requested: list[bool] = []

    def get_password() -> str:
        # Without a function OpenSSL prompts on the terminal, and a service would hang there.
        requested.append(True)
        if password is None:
            raise ConfigError(f"the key of {name} is encrypted, and there is no ssl_key_password")
        return password.reveal()

    try:
        made.load_cert_chain(path, password=get_password)
    except ssl.SSLError as error:
        if requested:
            raise ConfigError(f"ssl_key_password is not the password of the key of {name}") from None
        raise ConfigError(f"{name} must have a private key and its certificate in PEM: {_reason(error)}") from None
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A temporary file that only its owner can read: the standard library takes keys only from files."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("muster-key")  # never on disk
        try:
            os.write(number, text.encode())
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key.pem")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        yield str(path)


def _pem(name: str, location: str) -> str:
    if "-----BEGIN" in location:  # perhaps a private key, which must not be shown
        as_text = "ssl_truststore_certificates" if "truststore" in name else "ssl_keystore_key"
        raise ConfigError(f"{name} contains PEM where a file name is expected; for PEM text use {as_text}")
    try:
        found = Path(location).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: {location} cannot be read: {error.strerror}") from None
    if found.startswith((_JKS, _JCEKS)):
        raise ConfigError(f"{name}: {location} is a Java key store; {_from_java(location)}")
    if found.startswith(_DER):
        raise ConfigError(f"{name}: {location} is PKCS#12 or DER; {_from_pkcs12(location)}")
    if b"-----BEGIN" not in found:  # also an empty file, which would mean the system's authorities
        raise ConfigError(f"{name}: {location} is not PEM: it has no -----BEGIN")
    return found.decode("ascii", "ignore")


def _refuse_type(name: str, store_type: str | None, location: str) -> None:
    if store_type is None or store_type.upper() == "PEM" or "-----BEGIN" in location:  # `_pem` refuses a key here
        return
    with contextlib.suppress(OSError, ValueError):
        if b"-----BEGIN" in Path(location).read_bytes():
            raise ConfigError(f"{name} is {store_type}, and {location} is PEM: leave {name} out")
    known = {"JKS": _from_java, "PKCS12": _from_pkcs12}.get(store_type.upper())
    raise ConfigError(f"{name} is {store_type}, which is not supported; {known(location) if known else 'PEM is'}")


def _from_java(location: str) -> str:
    target = str(Path(location).with_suffix(".p12"))
    return (
        f"convert it to PEM: keytool -importkeystore -srckeystore {location} -destkeystore {target} "
        f"-deststoretype PKCS12, then {_command(target)}"
    )


def _from_pkcs12(location: str) -> str:
    return f"convert it to PEM: {_command(location)}"


def _command(location: str) -> str:
    return f"openssl pkcs12 -in {location} -out {Path(location).with_suffix('.pem')} -nodes"


def _versions(names: tuple[str, ...]) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown or not names:
        raise ConfigError(f"ssl_enabled_protocols has {unknown or 'nothing'}; the valid values are TLSv1.2 and TLSv1.3")
    chosen = sorted(_VERSIONS[name] for name in names)
    return chosen[0], chosen[-1]


def _choose_ciphers(made: ssl.SSLContext, names: tuple[str, ...]) -> None:
    # The ciphers of TLS 1.3 are OpenSSL's own choice: the standard library cannot narrow them.
    older = [name for name in names if not name.startswith(("TLS_AES", "TLS_CHACHA20"))]
    if not older:
        return
    try:
        made.set_ciphers(":".join(older))
    except ssl.SSLError:
        raise ConfigError(
            f"ssl_cipher_suites has {', '.join(older)}, none of which OpenSSL knows; its names look like "
            "ECDHE-RSA-AES256-GCM-SHA384 (openssl ciphers -v lists them)"
        ) from None


# --- what went wrong -------------------------------------------------------------------------------------------------

_OTHER_PROTOCOL: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"}
)

_EXPIRED, _NOT_YET = 10, 9
_HOST_NAME = frozenset({62, 64})
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})


def why_refused(error: ssl.SSLError) -> str | None:
    """Why the handshake cannot succeed and what to do, as part of a sentence; None if a retry may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _why_not_trusted(error)
    reason = getattr(error, "reason", None) or ""
    if reason in _OTHER_PROTOCOL:
        return "the port does not speak TLS; use security_protocol PLAINTEXT or SASL_PLAINTEXT, or another port"
    if reason.endswith(("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")):
        return "the broker and this client have no version of TLS in common; check ssl_enabled_protocols on both sides"
    if "ALERT" in reason and any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")):
        return (
            f"the broker does not accept this client's certificate ({_reason(error)}); check ssl_keystore_location, "
            "and the broker's ssl.truststore"
        )
    if "HANDSHAKE_FAILURE" in reason or "NO_SHARED_CIPHER" in reason:
        return (
            "the broker refused the handshake: it requires a client certificate (ssl_keystore_location), or no "
            "cipher suite is common to both (ssl_cipher_suites)"
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return None
    return f"the TLS handshake failed: {_reason(error)}"


def _why_not_trusted(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "the broker's certificate has expired; renew it on the broker (or this machine's clock is wrong)"
    if code == _NOT_YET:
        return "the broker's certificate is not valid yet; is this machine's clock right?"
    if code in _HOST_NAME:
        return (
            f"the broker's certificate is for another host name ({error.verify_message}); use its name, or "
            "leave ssl_endpoint_identification_algorithm empty to trust any name"
        )
    if code in _UNKNOWN_AUTHORITY:
        return (
            "the broker's certificate is from an authority that is not trusted here; add its certificate (PEM) with "
            "ssl_truststore_location"
        )
    return f"the broker's certificate is not trusted: {error.verify_message}"


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else str(error)
