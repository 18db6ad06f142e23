"""TLS contexts: what is loaded from where, and the errors for files that cannot be used."""

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificate

from muster.client.config import ClientConfig
from muster.client.security.secret import Secret
from muster.client.security.tls import context, why_refused
from muster.errors import ConfigError
from tests.support.secure_kafka import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.write()
    return made


def config(**settings):
    return ClientConfig.of({"security_protocol": "SSL"} | settings)


def parts(path):
    """A file's key and its certificates."""
    text = Path(path).read_text()
    start = text.index("-----BEGIN CERTIFICATE")
    return text[:start], text[start:]


def test_a_broker_is_checked_by_default(certificates):
    made = context(config())
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2


def test_without_names_the_authority_is_checked_all_the_same():
    made = context(config(ssl_endpoint_identification_algorithm=""))
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_only_the_authorities_that_are_named_are_trusted(certificates):
    by_path = context(config(ssl_truststore_location=str(certificates.path("ca"))))
    by_text = context(config(ssl_truststore_certificates=certificates.path("ca").read_text()))
    serial = f"{load_pem_x509_certificate(certificates.path('ca').read_bytes()).serial_number:X}"
    for made in by_path, by_text:
        assert [str(found["serialNumber"]).lstrip("0") for found in made.get_ca_certs()] == [serial]


def test_a_key_may_be_text(certificates):
    key, chain = parts(certificates.path("client"))
    context(config(ssl_keystore_key=key, ssl_keystore_certificate_chain=chain))
    context(config(ssl_keystore_location=str(certificates.path("client"))))


def encrypted(certificates, password):
    """A key that needs a password, as text."""
    key, chain = parts(certificates.path("client"))
    made = load_pem_private_key(key.encode(), None)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password)).decode(), chain


def test_an_encrypted_key_needs_its_password(certificates):
    key, chain = encrypted(certificates, b"hush")
    given = {"ssl_keystore_key": key, "ssl_keystore_certificate_chain": chain}
    context(config(**given, ssl_key_password="hush"))
    with pytest.raises(ConfigError, match="there is no ssl_key_password"):
        context(config(**given))
    with pytest.raises(ConfigError, match="is not the password") as raised:
        context(config(**given, ssl_key_password="hush-wrong"))
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xfe\xed\xfe\xed\0\0\0\2", "is a Java key store; convert it to PEM: keytool -importkeystore"),
        (b"\x30\x82\x0a\x00\x02\x01", "PKCS#12 or DER; convert it to PEM: openssl pkcs12 -in"),
        (b"\xff\xff", "is not PEM"),
        (b"", "is not PEM"),  # not the system's authorities
        (b"text", "is not PEM"),
        (b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n", "no certificates in PEM"),
    ],
)
def test_a_truststore_of_another_form_is_refused_with_what_to_do(tmp_path, content, why):
    path = tmp_path / "store.jks"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        context(config(ssl_truststore_location=str(path)))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ssl_truststore_location": "none.pem"}, "none.pem cannot be read: No such file"),
        ({"ssl_keystore_location": "none.pem"}, "none.pem cannot be read: No such file"),
        ({"ssl_keystore_location": "-----BEGIN PRIVATE KEY-----\nhush"}, "for PEM text use ssl_keystore_key$"),
        ({"ssl_truststore_location": "-----BEGIN CERTIFICATE-----\n"}, "for PEM text use ssl_truststore_certificates$"),
        (
            {"ssl_truststore_location": "a.jks", "ssl_truststore_type": "JKS"},
            "is JKS, which is not supported; convert it",
        ),
        ({"ssl_keystore_location": "a.p12", "ssl_keystore_type": "PKCS12"}, "-out a.pem"),
        ({"ssl_keystore_location": "a", "ssl_keystore_type": "BKS"}, "is BKS, which is not supported; PEM is"),
        ({"ssl_truststore_location": "a", "ssl_truststore_certificates": "b"}, "both set"),
        ({"ssl_keystore_location": "a", "ssl_keystore_key": "b"}, "both set"),
        ({"ssl_keystore_key": "b"}, "belong together"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "the valid values are TLSv1.2 and TLSv1.3"),
        ({"ssl_enabled_protocols": ""}, "the valid values are TLSv1.2 and TLSv1.3"),
        ({"ssl_cipher_suites": "TLS_RSA_NO_SUCH"}, "none of which OpenSSL knows"),
    ],
)
def test_what_cannot_be_used_is_reported(settings, why):
    with pytest.raises(ConfigError, match=why):
        context(config(**settings))


def test_a_key_in_place_of_a_file_is_not_shown_whatever_its_type():
    key = "-----BEGIN PRIVATE KEY-----\nhush"
    with pytest.raises(ConfigError, match=r"for PEM text use ssl_keystore_key$"):
        context(config(ssl_keystore_location=key, ssl_keystore_type="JKS"))


def test_pem_that_is_said_to_be_a_java_key_store_is_not_made_pem_again(certificates):
    path = str(certificates.path("ca"))
    with pytest.raises(ConfigError, match=r"is JKS, and .*ca.pem is PEM: leave ssl_truststore_type out"):
        context(config(ssl_truststore_location=path, ssl_truststore_type="JKS"))


def test_a_keystore_without_a_key_is_reported(certificates):
    with pytest.raises(ConfigError, match="must have a private key and its certificate in PEM"):
        context(config(ssl_keystore_location=str(certificates.path("ca"))))


def test_versions_and_ciphers_are_chosen():
    made = context(config(ssl_enabled_protocols="TLSv1.2", ssl_cipher_suites="ECDHE-RSA-AES256-GCM-SHA384"))
    assert made.maximum_version is ssl.TLSVersion.TLSv1_2
    older = [found["name"] for found in made.get_ciphers() if found["protocol"] != "TLSv1.3"]
    assert older == ["ECDHE-RSA-AES256-GCM-SHA384"]


def ssl_error(reason):
    error = ssl.SSLError(1, f"[SSL: {reason}] words")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("HTTP_REQUEST", "does not speak TLS"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "no version of TLS in common"),
        ("UNSUPPORTED_PROTOCOL", "no version of TLS in common"),
        ("SSLV3_ALERT_BAD_CERTIFICATE", "does not accept this client's certificate"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "does not accept this client's certificate"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not accept this client's certificate"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "no cipher suite is common"),
        ("SOMETHING_ELSE", "the TLS handshake failed: something else"),
    ],
)
def test_each_end_of_a_handshake_has_its_words(reason, said):
    assert said in (why_refused(ssl_error(reason)) or "")


def test_a_connection_that_merely_ends_may_be_tried_again():
    assert why_refused(ssl.SSLEOFError(8, "EOF occurred")) is None


def test_a_secret_stays_one():
    assert str(Secret("hush")) == repr(Secret("hush")) == f"{Secret('hush')}" == "[hidden]"
