"""OAuth tokens: fetched when they are needed, kept while they are valid, and never shown."""

import base64
import contextlib
import json
import socket
import ssl
import threading
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from muster.client.config import ClientConfig
from muster.client.security import tls
from muster.client.security.credentials import Credentials
from muster.client.security.secret import Secret
from muster.client.security.settings import login
from muster.client.security.tokens import Token, Tokens, by_client_credentials
from muster.errors import AuthenticationError, ConfigError

NOW = 1_700_000_000_000


class Source:
    """Gives tokens t0, t1, ... that are valid for a time, or fails."""

    def __init__(self, lives_ms):
        self.lives_ms, self.now, self.count, self.fails = lives_ms, NOW, 0, False

    def __call__(self):
        if self.fails:
            raise AuthenticationError("away", retriable=True)
        self.count += 1
        return Token(Secret(f"t{self.count}"), None if self.lives_ms is None else self.now + self.lives_ms)


def test_a_token_is_kept_for_four_fifths_of_its_life():
    source = Source(1_000)
    tokens = Tokens(source, lambda: source.now)
    found = []
    for source.now in (NOW, NOW + 799, NOW + 800, NOW + 1_599):
        found.append(tokens.get())
    assert found == ["t1", "t1", "t2", "t2"]


def test_a_token_of_unknown_life_is_used_once():
    tokens = Tokens(Source(None), lambda: NOW)
    assert [tokens.get(), tokens.get()] == ["t1", "t2"]


def test_an_old_token_serves_while_there_is_no_new_one():
    source = Source(1_000)
    tokens = Tokens(source, lambda: source.now)
    tokens.get()
    source.fails, source.now = True, NOW + 999
    assert tokens.get() == "t1"
    source.now = NOW + 1_000
    with pytest.raises(AuthenticationError, match="away"):
        tokens.get()


def test_an_old_token_does_not_serve_that_expired_while_a_new_one_was_tried():
    source = Source(1_000)

    def slow_and_away():
        source.now = NOW + 1_000
        raise AuthenticationError("away", retriable=True)

    tokens = Tokens(lambda: slow_and_away() if source.count else source(), lambda: source.now)
    tokens.get()
    source.now = NOW + 900
    with pytest.raises(AuthenticationError, match="away"):
        tokens.get()


def test_connections_that_wait_for_a_vain_try_do_not_try_one_after_another():
    waiting, go_on, count = threading.Semaphore(0), threading.Event(), []

    def hanging():
        count.append(1)
        waiting.release()
        assert go_on.wait(60)
        raise AuthenticationError("away", retriable=True)

    tokens = Tokens(hanging, lambda: NOW)
    reported = []

    def ask():
        with pytest.raises(AuthenticationError, match="away") as raised:
            tokens.get()
        reported.append(raised.value.retriable)

    first = threading.Thread(target=ask)
    first.start()
    assert waiting.acquire(timeout=60)
    # The lock is the gate at which the other threads wait: each has arrived before the first attempt fails.
    gate = Gate(tokens._lock)
    tokens._lock = gate  # type: ignore[assignment]
    others = [threading.Thread(target=ask) for _ in range(3)]
    for thread in others:
        thread.start()
    for _ in others:
        assert gate.came.acquire(timeout=60)
    go_on.set()
    for thread in (first, *others):
        thread.join(60)
    assert reported == [True] * 4
    assert len(count) == 1
    with pytest.raises(AuthenticationError, match="away"):
        tokens.get()  # one that comes later tries
    assert len(count) == 2


class Gate:
    """A lock that signals each arrival."""

    def __init__(self, lock):
        self.lock, self.came = lock, threading.Semaphore(0)

    def __enter__(self):
        self.came.release()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_a_token_that_was_refused_is_not_used_again():
    tokens = Tokens(Source(1_000), lambda: NOW)
    tokens.get()
    tokens.refused()
    assert tokens.get() == "t2"


@given(st.lists(st.sampled_from(["get", "refused", "away", "back", "later"]), max_size=30))
def test_no_token_is_sent_again_after_it_was_refused(steps):
    """Not even if no other token is available, whether or not the refused one has expired."""
    source = Source(1_000)
    tokens = Tokens(source, lambda: source.now)
    sent, refused = [], set()
    for step in steps:
        match step:
            case "get":
                with contextlib.suppress(AuthenticationError):
                    sent.append(tokens.get())
                    assert sent[-1] not in refused
            case "refused":
                tokens.refused()
                refused |= set(sent)
            case "later":
                source.now += 400
            case _:
                source.fails = step == "away"


def test_a_token_that_has_expired_is_not_sent():
    with pytest.raises(AuthenticationError, match="already expired"):
        Tokens(Source(0), lambda: NOW).get()


def test_a_valid_token_is_used_while_the_source_returns_an_expired_one():
    given, now = [Token(Secret("good"), NOW + 1_000), Token(Secret("stale"), NOW)], [NOW]
    tokens = Tokens(lambda: given.pop(0), lambda: now[0])
    assert tokens.get() == "good"
    now[0] += 900  # after four fifths of its lifetime
    assert tokens.get() == "good"


def jwt(claims):
    middle = base64.urlsafe_b64encode(claims if isinstance(claims, bytes) else json.dumps(claims).encode())
    return f"e30.{middle.decode().rstrip('=')}.c2ln"


@pytest.mark.parametrize(
    ("text", "expires_at_ms"),
    [
        (jwt({"exp": 1_700_000_000}), NOW),
        (jwt({"exp": 1_700_000_000.5}), NOW + 500),
        (jwt({"exp": "soon"}), None),
        (jwt({"exp": 1e400}), None),
        (jwt({}), None),
        (jwt([1]), None),
        (jwt(b"\xff"), None),
        (jwt(b"[" * 100_000), None),
        ("opaque", None),
        ("a.b.c", None),
    ],
)
def test_how_long_a_token_lives_is_read_from_it(text, expires_at_ms):
    assert Token.of(text).expires_at_ms == expires_at_ms
    assert Token.of(Token(Secret(text), 7)).expires_at_ms == 7


@pytest.mark.parametrize("given", ["", "two words", "line\nline", "a\x01b", "ü", b"bytes", None, 7])
def test_what_is_not_a_token_is_refused_without_showing_it(given):
    with pytest.raises(AuthenticationError) as raised:
        Token.of(given)
    if given and isinstance(given, str):
        assert given not in str(raised.value)


@contextmanager
def endpoint(status, body, headers=(), authority=None):
    """A token endpoint with this response, over TLS if it has an authority; it yields the requests that it got."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append((self.headers, self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()))
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.do_POST()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http{'s' if authority else ''}://127.0.0.1:{server.server_port}/token?tenant=hush", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asking(url, secret="hush:secret", **more):
    """Settings of a client that uses this endpoint."""
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": secret,
        "sasl.oauthbearer.scope": "kafka read",
    }
    return ClientConfig.of(settings | more)


def fetch(url, **more):
    config = asking(url, **more)
    found = login(config)
    trust = None if found.endpoint is None else tls.context(found.endpoint)
    return by_client_credentials(config, found, lambda: NOW, trust)


@pytest.mark.parametrize(("encode", "pair"), [("false", "me:hush:secret"), ("true", "me:hush%3Asecret")])
def test_client_credentials_are_exchanged_for_a_token(encode, pair):
    with endpoint(200, b'{"access_token":"abc","expires_in":60}') as (url, asked):
        token = fetch(url, **{"sasl.oauthbearer.header.urlencode": encode})
    assert token == Token(Secret("abc"), NOW + 60_000)
    ((headers, body),) = asked
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == pair
    assert body == "grant_type=client_credentials&scope=kafka+read"


@pytest.mark.parametrize(
    ("status", "body", "why", "retriable"),
    [
        (200, b"<html>", "did not answer with JSON", False),
        (200, b"{}", "has no access_token", False),
        (200, b'{"access_token":7}', "has no access_token", False),
        (200, b'{"access_token":"two words"}', "characters that a token cannot have", False),
        (401, b'{"error":"invalid_client","error_description":"hush"}', "HTTP 401: invalid_client; .*urlencode", False),
        (400, b'{"error":"unauthorized_client"}', "HTTP 400: unauthorized_client; .*urlencode", False),
        (400, b'{"error":"invalid_scope"}', "HTTP 400: invalid_scope; check sasl_oauthbearer_scope", False),
        (400, b'{"error":"invalid_grant"}', "HTTP 400: invalid_grant$", False),
        (400, b"hush", "HTTP 400: Bad Request", False),
        (429, b"", "HTTP 429", True),
        (503, b"hush", "HTTP 503: Service Unavailable", True),
    ],
)
def test_what_an_endpoint_refuses_is_reported_without_secrets(status, body, why, retriable):
    with endpoint(status, body) as (url, _), pytest.raises(AuthenticationError, match=why) as raised:
        fetch(url)
    assert "hush" not in str(raised.value)
    assert raised.value.retriable is retriable


@pytest.mark.parametrize("status", [302, 307, 308])
def test_the_secret_does_not_follow_to_another_address(status):
    with (
        endpoint(200, b'{"access_token":"abc"}') as (other, asked),
        endpoint(status, b"", [("Location", other)]) as (url, _),
        pytest.raises(AuthenticationError, match=f"HTTP {status}"),
    ):
        fetch(url)
    assert asked == []


def test_an_endpoint_that_is_away_may_come_back():
    with endpoint(200, b"") as (url, _):
        pass
    with pytest.raises(AuthenticationError, match="no token from the token endpoint at ") as raised:
        fetch(url)
    assert raised.value.retriable


def test_an_endpoint_that_wants_tls_is_distinguished_from_one_that_is_down():
    with (
        endpoint(200, b"", authority=trustme.CA()) as (url, _),
        pytest.raises(AuthenticationError, match=r"does its port expect https\?") as raised,
    ):
        fetch(url.replace("https:", "http:"))
    assert raised.value.retriable
    with pytest.raises(AuthenticationError, match="no token from the token endpoint at ") as raised:
        fetch(url.replace("https:", "http:"))
    assert "https" not in str(raised.value)


@pytest.mark.parametrize(("connect_ms", "read_ms", "timeout_s"), [(1_500, 20, 1.5), (20, 2_500, 2.5), (0, 0, None)])
def test_an_endpoint_has_the_longer_of_the_two_timeouts(monkeypatch, connect_ms, read_ms, timeout_s):
    """The standard library has one timeout for both."""
    found = []

    def away(_opener, _request, timeout):
        found.append(timeout)
        raise OSError

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", away)
    timeouts = {"sasl.login.connect.timeout.ms": connect_ms, "sasl.login.read.timeout.ms": read_ms}
    with pytest.raises(AuthenticationError):
        fetch("http://localhost:1/token", **timeouts)
    assert found == [timeout_s]


def test_an_endpoint_that_does_not_speak_http_is_reported_without_what_it_says():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"SSH-2.0-hush\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(AuthenticationError, match="did not answer with HTTP") as raised:
            fetch(f"http://127.0.0.1:{server.getsockname()[1]}/token")
        thread.join()
    assert "SSH" not in str(raised.value)


def test_the_endpoint_may_have_an_authority_of_its_own(tmp_path):
    """The options are those of Kafka's OAuthBearerLoginCallbackHandler."""
    authority, stranger = trustme.CA(), trustme.CA()
    for name, found in (("own", authority), ("other", stranger)):
        found.cert_pem.write_to_path(str(tmp_path / f"{name}.pem"))

    def trusting(*options):
        return {"sasl.jaas.config": f"x.OAuthBearerLoginModule required {' '.join(options)} ;"}

    own, other = (f'ssl.truststore.location="{tmp_path}/{name}.pem"' for name in ("own", "other"))
    with endpoint(200, b'{"access_token":"abc"}', authority=authority) as (url, asked):
        for options in ([], [other]):
            with pytest.raises(AuthenticationError, match=r"certificate is not trusted .*ssl.truststore.loc") as raised:
                fetch(url, **(trusting(*options) if options else {}))
            assert not raised.value.retriable
        assert asked == []
        assert fetch(url, **trusting(own)).value == Secret("abc")
        named_otherwise = url.replace("127.0.0.1", "localhost")
        with pytest.raises(AuthenticationError, match="certificate is not trusted"):
            fetch(named_otherwise, **trusting(own))
        unnamed = 'ssl.endpoint.identification.algorithm=""'
        assert fetch(named_otherwise, **trusting(own, unnamed)).value == Secret("abc")


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ('ssl.trustore.location="x"', "ssl.trustore.location, which is not a TLS setting"),
        ('ssl.truststore.location="/none.pem"', "/none.pem cannot be read"),
    ],
)
def test_wrong_options_for_the_endpoint_are_reported_before_a_token_is_wanted(option, why):
    more = {"sasl.jaas.config": f"x.OAuthBearerLoginModule required {option} ;"}
    with pytest.raises(ConfigError, match=why):
        Credentials(asking("https://127.0.0.1:1/", **more), lambda: NOW)


def test_a_token_may_lie_in_a_file(tmp_path):
    path = tmp_path / "a token"
    path.write_text("abc\n")
    assert fetch(path.as_uri()).value == Secret("abc")
    path.unlink()
    with pytest.raises(AuthenticationError, match="No such file"):
        fetch(path.as_uri())
