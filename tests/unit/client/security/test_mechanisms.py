"""SASL mechanisms against the examples in their RFCs, and against servers that do not follow them."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.client.security.sasl.mechanisms import OAuthBearer, Plain, SaslError, Scram

EXAMPLES = [
    (  # RFC 7677, 3
        "SCRAM-SHA-256",
        "rOprNGfwEbeRWgbNEkqO",
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    )
]


@pytest.mark.parametrize(("mechanism", "nonce", "server_first", "client_final", "server_final"), EXAMPLES)
def test_the_example_of_the_rfc(mechanism, nonce, server_first, client_final, server_final):
    scram = Scram(mechanism, "user", "pencil", nonce)
    assert scram.first() == f"n,,n=user,r={nonce}".encode()
    assert scram.answer(server_first.encode()) == client_final.encode()
    assert not scram.done
    assert scram.answer(server_final.encode()) is None
    assert scram.done


class Server:
    """The server side of SCRAM, as RFC 5802 specifies, written independently of the tested code."""

    def __init__(self, digest, password, salt, iterations=4096):
        self.digest, self.salt, self.iterations = digest, salt, iterations
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
        self.client_key = hmac.new(salted, b"Client Key", digest).digest()
        self.server_key = hmac.new(salted, b"Server Key", digest).digest()

    def first(self, client_first):
        self.bare = client_first.decode().removeprefix("n,,")
        nonce = dict(part.split("=", 1) for part in self.bare.split(","))["r"] + "server"
        self.said = f"r={nonce},s={base64.b64encode(self.salt).decode()},i={self.iterations}"
        return self.said.encode()

    def final(self, client_final):
        without, _, proof = client_final.decode().rpartition(",p=")
        message = f"{self.bare},{self.said},{without}".encode()
        stored = hashlib.new(self.digest, self.client_key).digest()
        signature = hmac.new(stored, message, self.digest).digest()
        key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
        if hashlib.new(self.digest, key).digest() != stored:
            return None
        return b"v=" + base64.b64encode(hmac.new(self.server_key, message, self.digest).digest())


@given(
    username=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    password=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    salt=st.binary(min_size=1),
    long=st.booleans(),
)
def test_both_sides_are_sure_of_each_other(username, password, salt, long):
    size = 512 if long else 256
    client = Scram(f"SCRAM-SHA-{size}", username, password, "nonce")
    server = Server(f"sha{size}", password, salt)
    final = server.final(client.answer(server.first(client.first())))
    assert final is not None
    assert client.answer(final) is None
    assert client.done
    name = server.bare.split(",")[0].removeprefix("n=")
    assert name.replace("=2C", ",").replace("=3D", "=") == username


def test_another_password_is_not_a_proof():
    client, server = Scram("SCRAM-SHA-256", "alice", "wrong", "nonce"), Server("sha256", "right", b"salt")
    assert server.final(client.answer(server.first(client.first()))) is None


GOOD = "r=nonceserver,s=c2FsdA==,i=4096"


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (GOOD.replace("nonce", "other"), "nonce"),
        (GOOD.replace("nonceserver", "nonce"), "nonce"),
        (GOOD.replace("4096", "4095"), "4095 iterations"),
        (GOOD.replace("4096", "99999999999"), "99999999999 iterations"),
        (GOOD.replace("4096", "4096 "), "RFC 5802"),
        (GOOD.replace("4096", "-1"), "RFC 5802"),
        (GOOD.replace("c2FsdA==", "c2Fs*A=="), "RFC 5802"),
        (GOOD.replace("c2FsdA==", ""), "RFC 5802"),
        ("m=ext," + GOOD, "extension"),
        ("r=nonceserver", "RFC 5802"),
        ("r=nonceserver,r=nonceserver", "RFC 5802"),
        ("", "RFC 5802"),
        ("e=unknown-user", "unknown-user"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_a_first_challenge_that_is_wrong_is_refused(challenge, why):
    scram = Scram("SCRAM-SHA-256", "alice", "secret", "nonce")
    scram.first()
    with pytest.raises(SaslError, match=why) as raised:
        scram.answer(challenge if isinstance(challenge, bytes) else challenge.encode())
    assert "secret" not in str(raised.value)
    assert not scram.done


@pytest.mark.parametrize(
    "final", ["v=AAAA", "v=", "x=1", "e=other-error", "", "v=" + base64.b64encode(bytes(32)).decode()]
)
def test_a_server_that_does_not_know_the_password_is_found_out(final):
    scram = Scram("SCRAM-SHA-256", "alice", "secret", "nonce")
    scram.answer(GOOD.encode())
    with pytest.raises(SaslError):
        scram.answer(final.encode())
    assert not scram.done


def test_a_token_of_delegation_says_so():
    assert Scram("SCRAM-SHA-256", "id", "mac", "n", {"tokenauth": "true"}).first() == b"n,,n=id,r=n,tokenauth=true"


def test_plain_sends_name_and_password():
    plain = Plain("alice", "geheim ü")
    assert plain.first() == b"\0alice\0geheim \xc3\xbc"
    assert plain.answer(b"") is None
    with pytest.raises(SaslError):
        plain.answer(b"?")


def test_a_token_is_sent_with_its_extensions():
    bearer = OAuthBearer("abc", {"logicalCluster": "lkc-1"})
    assert bearer.first() == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01\x01"
    assert bearer.answer(b"") is None
    assert bearer.done


@pytest.mark.parametrize(
    ("challenge", "refusal"),
    [
        (b'{"status":"invalid_token"}', "invalid_token"),
        (b"[1]", "the broker gave no reason"),
        (b"\xff", "the broker gave no reason"),
        (b'{"status":7}', "the broker gave no reason"),
        (b"[" * 100_000, "the broker gave no reason"),
    ],
)
def test_a_token_that_is_refused_is_answered_as_the_rfc_wants(challenge, refusal):
    bearer = OAuthBearer("abc", {})
    assert bearer.answer(challenge) == b"\x01"
    assert bearer.refusal == refusal
    assert not bearer.done
    with pytest.raises(SaslError, match=refusal):
        bearer.answer(challenge)
