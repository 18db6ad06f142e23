"""Files of settings, read as Java reads them."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.properties import check, choose, read
from muster.errors import ConfigError


@pytest.fixture
def reading(tmp_path):
    def read_text(text):
        path = tmp_path / "client.properties"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("iso-8859-1"))
        return read(str(path))

    return read_text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# a\n! b\n\n   \n  # c", {}),
        ("a=b", {"a": "b"}),
        ("a = b = c ", {"a": "b = c "}),
        ("a: b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("  a\t=\tb", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=one \\\n    two \\\n three", {"a": "one two three"}),
        ("a=one \\\n# two", {"a": "one # two"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        (r"a=\t\n\r\f\q\u00fc", {"a": "\t\n\r\fqü"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        (r"a\=b\ c=d", {"a=b c": "d"}),
        ("a=\xfc", {"a": "ü"}),
        (b"\xef\xbb\xbfa=b", {"a": "b"}),
    ],
)
def test_lines_are_read_as_java_reads_them(reading, text, found):
    assert reading(text) == found


def test_a_broken_escape_is_reported_with_its_line_and_without_its_value(reading):
    with pytest.raises(ConfigError, match=r"line 2: .u must be followed by four") as raised:
        reading("a=b\npassword=hush\\u12")
    assert "hush" not in str(raised.value)


def test_a_file_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(str(tmp_path / "none"))


@given(st.dictionaries(st.text(max_size=6), st.text(max_size=9), max_size=4))
def test_whatever_is_escaped_is_read_back(tmp_path_factory, settings):
    def escaped(text):
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

    path = tmp_path_factory.mktemp("settings") / "client.properties"
    path.write_text("".join(f"{escaped(key)}={escaped(value)}\n" for key, value in settings.items()))
    assert read(str(path)) == settings


KNOWN = ("security_protocol", "ssl_truststore_location")


def test_settings_of_other_clients_are_skipped(caplog):
    caplog.set_level(logging.INFO)
    found = {"security.protocol": "SSL", "group.id": "g", "metric.reporters": "", "security.protocoll": "SSL"}
    assert choose(found, KNOWN) == {"security.protocol": "SSL"}
    check("f", found, {*KNOWN, "group_id"})
    reported = [record.getMessage() for record in caplog.records]
    assert reported == ["f: security.protocoll is not a setting of a Kafka client; did you mean security.protocol?"]


def test_a_line_of_a_key_is_not_shown(tmp_path, caplog):
    """As if a backslash were missing at the end of the first line."""
    path = tmp_path / "client.properties"
    path.write_text("ssl.keystore.key=-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANhush/+\n-----END PRIVATE KEY-----\n")
    check("f", read(str(path)), {*KNOWN, "ssl_keystore_key"})
    said = "f: a line in it begins without a setting's name; does the line before lack its backslash?"
    assert [record.getMessage() for record in caplog.records] == [
        said.replace("a line in it begins", "2 lines in it begin")
    ]
    caplog.clear()
    check("f", {"security.protocol": "SSL", "MII": ""}, {*KNOWN})
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_file_of_another_kind_does_not_lead_to_another_cluster(caplog):
    """A certificate, or a file whose only setting has a typo: otherwise the default address would be used."""
    for found in {"-----BEGIN": "CERTIFICATE-----", "MII": ""}, {"bootstrap.server": "a:1"}:
        with pytest.raises(ConfigError, match="f has no setting of a Kafka client; is it the right file"):
            check("f", found, KNOWN)
    for found in {}, {"metric.reporters": ""}, {"config.providers": ""}:
        check("f", found, KNOWN)
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "reported"),
    [("a=1\nb=hush ü".encode(), True), (b"b=hush \xfc", False), (b"b=\\u00fc", False), ("# ü\nb=1".encode(), False)],
)
def test_letters_that_java_reads_otherwise_are_reported_without_the_value(reading, caplog, text, reported):
    reading(text)
    said = [record.getMessage() for record in caplog.records]
    assert [("line 2: it looks like UTF-8" in one, "hush" in one) for one in said] == [(True, False)] * reported


@pytest.mark.parametrize("key", ["ssl.engine.factory.class", "config.providers", "sasl.oauthbearer.assertion.file"])
def test_what_would_change_the_meaning_is_refused(key):
    with pytest.raises(ConfigError, match=f"f: {key} is not supported here"):
        check("f", {key: "x"}, KNOWN)


def test_kafkas_own_handler_of_tokens_is_what_is_done_here(caplog):
    name = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    check("f", {"sasl.login.callback.handler.class": name}, KNOWN)
    assert not caplog.records
