"""TLS and SASL for every client: settings.py has the settings by Kafka's names, tls.py makes contexts from them,
jaas.py reads Kafka's login lines, tokens.py fetches OAuth tokens, credentials.py creates a mechanism for each
authentication.
"""
