"""The messages of SASL authentication, as Apache Kafka 4.2 defines them. muster's broker does not serve them.

`schema.py` states the grammar.
"""

SASL_MESSAGES = """
request SaslHandshakeRequest key=17 versions=0-1 flexible=none
    mechanism string

response SaslHandshakeResponse key=17 versions=0-1 flexible=none
    error_code int16
    mechanisms []string

request SaslAuthenticateRequest key=36 versions=0-2 flexible=2+
    auth_bytes bytes

response SaslAuthenticateResponse key=36 versions=0-2 flexible=2+
    error_code int16
    error_message string null=0+
    auth_bytes bytes
    session_lifetime_ms int64 1+ default=0 ignorable
"""
