"""The security settings: how they are read, what they refuse, and what they never show."""

import pickle
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from muster.client.security import jaas
from muster.client.security.secret import HIDDEN, Secret
from muster.client.security.settings import SECRETS, SecurityConfig, login
from muster.errors import ConfigError
from tests.support.secure_kafka import quoted

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
OVER_SASL = {"security.protocol": "SASL_PLAINTEXT"}


def line(text):
    return {"sasl.jaas.config": text}


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]*", fullmatch=True), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    st.sampled_from([" ", "\n", "\t "]),
)
def test_any_options_are_read_back(options, space):
    pairs = [f"{name}{space}={quoted(value)}" for name, value in options.items()]
    module = jaas.read(Secret(f"{PLAIN} required{space}{space.join(pairs)};"))
    assert module.name == "PlainLoginModule"
    assert {name: module.get(name) for name in options} == options
    assert module.get("other") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a module, its flag, options"),
        (f"{PLAIN} required", "a semicolon"),
        (f'{PLAIN} required username="a" password="secret"', "a semicolon"),
        (f'{PLAIN} needed username="secret";', "required, requisite"),
        (f'{PLAIN} required username="secret;', "is not closed"),
        (f'{PLAIN} required username "secret";', "option 1 is not of the form"),
        (f'{PLAIN} required a="secret" username=;', "option 2 is not of the form"),
        (f'{PLAIN} required a="secret" a="secret";', "option 2 has the same name as another one"),
        (f'{PLAIN} required secret="a" secret="b";', "option 2 has the same name as another one"),
        (f'{PLAIN} required a="b"; {SCRAM} required a="secret";', "more than one module"),
    ],
)
def test_an_invalid_line_is_refused_without_showing_it(text, why):
    with pytest.raises(ConfigError, match=why) as raised:
        jaas.read(Secret(text))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("mechanism", "settings", "expected"),
    [
        ("PLAIN", line(f'{PLAIN} required username="a" password="b";'), ("a", "b", ())),
        ("PLAIN", {"sasl.username": "a", "sasl.password": "b"}, ("a", "b", ())),
        ("SCRAM-SHA-512", line(f"{SCRAM} required username='a' password='b';"), ("a", "b", ())),
        (
            "SCRAM-SHA-256",
            line(f'{SCRAM} required username="a" password="b" tokenauth="true";'),
            ("a", "b", (("tokenauth", "true"),)),
        ),
    ],
)
def test_name_and_password_come_from_either_place(mechanism, settings, expected):
    found = login(ClientConfig.of(OVER_SASL | {"sasl.mechanism": mechanism} | settings))
    assert (found.username, found.password.reveal(), found.extensions) == expected


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"security.protocol": "TLS"}, "it must be one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"security.protocol": "ssl"}, "it must be one of PLAINTEXT"),
        ({"ssl.endpoint.identification.algorithm": "http"}, "https, or empty"),
        (OVER_SASL, "so sasl_mechanism is needed"),
        (OVER_SASL | {"sasl.mechanism": "GSSAPI"}, "Kerberos is not supported"),
        (OVER_SASL | {"sasl.mechanism": "scram-sha-256"}, "must be one of PLAIN, SCRAM-SHA-256"),
        (OVER_SASL | {"sasl.mechanism": "PLAIN"}, "there is no sasl_username"),
        (OVER_SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "a"}, "there is no sasl_password"),
        (
            OVER_SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "a"} | line(f'{PLAIN} required username="a";'),
            "both set",
        ),
        (OVER_SASL | {"sasl.mechanism": "PLAIN"} | line(f'{PLAIN} required username="a";'), "has no password"),
        (
            OVER_SASL | {"sasl.mechanism": "PLAIN"} | line(f'{SCRAM} required username="a" password="hush";'),
            "has ScramLoginModule, but sasl_mechanism PLAIN needs PlainLoginModule",
        ),
        (
            OVER_SASL | {"sasl.mechanism": "PLAIN"} | line('hush required username="a";'),
            "has another module, but sasl_mechanism PLAIN needs PlainLoginModule",
        ),
        (OVER_SASL | {"sasl.mechanism": "OAUTHBEARER"}, "sasl_oauthbearer_token_provider or"),
        (
            OVER_SASL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://idp.example"},
            "client_credentials_client_id",
        ),
        (
            OVER_SASL | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "idp.example"},
            "must begin with https://",
        ),
        (
            OVER_SASL
            | {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.provider": lambda: "t"}
            | line(f'{OAUTH} required extension_auth="hush";'),
            "not a valid SASL extension name",
        ),
        (OVER_SASL | {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": 7}, "must be text"),
        ({"sasl.oauthbearer.token.provider": "text"}, "must be a function"),
    ],
)
def test_what_does_not_fit_is_refused(settings, why):
    with pytest.raises(ConfigError, match=why) as raised:
        ClientConfig.of(settings)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://me:hush@idp.example/token", "contains a user name or a password"),
        ("https://idp.example:hush/token", "is not a valid URL"),
        ("https://idp.example:99999/token", "is not a valid URL"),
        ("https://[hush/token", "is not a valid URL"),
        ("https:///hush", "is not a valid URL"),
        ("https://idp.example/a hush", "is not a valid URL"),
        ("https://idp.example/\nhush", "is not a valid URL"),
        ("https://idp.example/hüsh", "is not a valid URL"),
    ],
)
def test_an_invalid_address_of_tokens_is_refused_without_showing_it(url, why):
    token = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": url}
    client = {
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "hush",
    }
    with pytest.raises(ConfigError, match=why) as raised:
        ClientConfig.of(OVER_SASL | token | client)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("kind", [ClientConfig, ConsumerConfig, ProducerConfig, AdminConfig])
def test_secrets_are_never_shown(kind):
    hush = {name: f"hush-{name}" for name in SECRETS if name != "sasl_jaas_config"}
    config = kind.of(hush | {"sasl_jaas_config": f'{PLAIN} required username="a" password="hush";'})
    for shown in (repr(config), str(config), f"{config.sasl_password}", f"{config.sasl_password!r:>20}"):
        assert "hush" not in shown
    assert HIDDEN in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert kind(sasl_password="hush").sasl_password == Secret("hush")


def test_every_setting_that_sounds_secret_is():
    named = {f.name for f in fields(SecurityConfig) if f.name.endswith(("password", "secret", "_key", "jaas_config"))}
    assert named == SECRETS


def test_lists_may_be_text():
    config = ClientConfig.of({"ssl.enabled.protocols": "TLSv1.3, TLSv1.2"})
    assert config.ssl_enabled_protocols == ("TLSv1.3", "TLSv1.2")
