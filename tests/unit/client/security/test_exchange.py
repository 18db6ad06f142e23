"""How Kafka's requests carry SASL, and the handshake of a connection around it."""

import pytest

from muster.client.net.handshake import Handshake, Proof, RefusedError
from muster.client.security.sasl.exchange import Exchange
from muster.client.security.sasl.mechanisms import OAuthBearer, Plain, SaslError, Scram
from muster.errors import ErrorCode
from muster.protocol.messages import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from muster.protocol.sasl_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

TODAY: dict[int, tuple[int, int]] = {SaslHandshakeRequest.API_KEY: (0, 1), SaslAuthenticateRequest.API_KEY: (0, 2)}
FINE = SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN"])


def authenticated(code=ErrorCode.NONE, message=None, auth_bytes=b"", lifetime_ms=0):
    return SaslAuthenticateResponse(int(code), message, auth_bytes, lifetime_ms)


def begun(mechanism, ranges=TODAY, name="PLAIN"):
    """An exchange after SaslHandshake."""
    exchange = Exchange(name, mechanism, ranges)
    assert exchange.request() == SaslHandshakeRequest(mechanism=name)
    assert exchange.version == 1
    exchange.take(FINE)
    return exchange


def test_a_password_goes_in_the_second_request():
    exchange = begun(Plain("alice", "secret"))
    assert exchange.request() == SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret")
    assert exchange.version == 2
    assert not exchange.done
    exchange.take(authenticated(lifetime_ms=3_000))
    assert (exchange.done, exchange.session_lifetime_ms) == (True, 3_000)


def test_a_lifetime_below_zero_is_none():
    exchange = begun(Plain("alice", "secret"))
    exchange.take(authenticated(lifetime_ms=-1))
    assert exchange.session_lifetime_ms == 0


def test_a_broker_that_does_not_prove_itself_is_not_believed():
    exchange = begun(Scram("SCRAM-SHA-256", "alice", "secret", "nonce"), name="SCRAM-SHA-256")
    exchange.take(authenticated(auth_bytes=b"r=nonceserver,s=c2FsdA==,i=4096"))
    with pytest.raises(SaslError):
        exchange.take(authenticated())
    assert not exchange.done


@pytest.mark.parametrize("message", [None, '{"status":"invalid_token"}'])
def test_a_token_that_is_refused_is_reported_with_where_to_look(message):
    exchange = begun(OAuthBearer("abc", {}), name="OAUTHBEARER")
    exchange.take(authenticated(auth_bytes=b'{"status":"invalid_token"}'))
    assert exchange.request() == SaslAuthenticateRequest(auth_bytes=b"\x01")
    with pytest.raises(SaslError, match=r"refused OAUTHBEARER: .*; the reason is in its log") as raised:
        exchange.take(authenticated(ErrorCode.SASL_AUTHENTICATION_FAILED, message))
    assert str(raised.value).count("invalid_token") == 1


class NeverSure:
    """A mechanism to which the broker has not proved itself."""

    done = False

    def first(self):
        return b"hello"

    def answer(self, challenge):
        return None


def test_an_exchange_that_the_broker_ends_too_early_is_refused():
    exchange = begun(NeverSure())
    with pytest.raises(SaslError, match="before it proved itself"):
        exchange.take(authenticated())
    assert not exchange.done


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            SaslHandshakeResponse(33, ["SCRAM-SHA-512", "GSSAPI"]),
            "does not offer PLAIN .* offers: GSSAPI, SCRAM-SHA-512",
        ),
        (SaslHandshakeResponse(33, []), "it offers: none"),
        (SaslHandshakeResponse(34, []), "does not use SASL"),
        (SaslHandshakeResponse(-1, []), "refused to start PLAIN: UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_mechanism_that_is_refused(answer, said):
    with pytest.raises(SaslError, match=said):
        Exchange("PLAIN", Plain("a", "b"), TODAY).take(answer)


@pytest.mark.parametrize(
    ("message", "said"),
    [("wrong password", "the broker refused PLAIN: wrong password"), (None, "PLAIN: SASL_AUTHENTICATION_FAILED")],
)
def test_a_proof_that_is_refused(message, said):
    with pytest.raises(SaslError, match=said):
        begun(Plain("a", "b")).take(authenticated(ErrorCode.SASL_AUTHENTICATION_FAILED, message))


def test_why_a_token_was_refused_is_reported():
    exchange = begun(OAuthBearer("t", {}), name="OAUTHBEARER")
    exchange.take(authenticated(auth_bytes=b'{"status":"insufficient_scope"}'))
    assert exchange.request() == SaslAuthenticateRequest(auth_bytes=b"\x01")
    with pytest.raises(SaslError, match=r"refused OAUTHBEARER: no \(insufficient_scope\)"):
        exchange.take(authenticated(ErrorCode.SASL_AUTHENTICATION_FAILED, "no"))


@pytest.mark.parametrize("ranges", [{}, {SaslHandshakeRequest.API_KEY: (0, 0)}])
def test_a_broker_of_before_kafka_1_is_refused(ranges):
    handshake = Handshake.assumed(ranges, Proof("PLAIN", Plain("a", "b")))
    with pytest.raises(RefusedError, match="older than Kafka 1") as raised:
        _ = handshake.version
    assert raised.value.is_authentication


def versions(code=ErrorCode.NONE, ranges=TODAY):
    keys = [ApiVersion(int(key), *found) for key, found in ranges.items()]
    return ApiVersionsResponse(error_code=int(code), api_keys=keys)


def test_the_versions_come_before_the_proof():
    handshake = Handshake(proof=Proof("PLAIN", Plain("a", "b")))
    kinds = []
    for answer in versions(), FINE, authenticated(lifetime_ms=9):
        assert not handshake.done
        kinds.append(type(handshake.request()))
        handshake.take(answer)
    assert kinds == [ApiVersionsRequest, SaslHandshakeRequest, SaslAuthenticateRequest]
    assert (handshake.done, handshake.session_lifetime_ms, handshake.ranges) == (True, 9, TODAY)


def test_a_refusal_of_the_versions_is_none_of_the_proof():
    handshake = Handshake(proof=Proof("PLAIN", Plain("a", "b")))
    with pytest.raises(RefusedError, match="version handshake: CLUSTER_AUTHORIZATION_FAILED") as raised:
        handshake.take(versions(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert not raised.value.is_authentication


def test_another_proof_does_not_ask_for_the_versions_again():
    handshake = Handshake.assumed(TODAY, Proof("PLAIN", Plain("a", "b")))
    assert isinstance(handshake.request(), SaslHandshakeRequest)
    assert not handshake.done
