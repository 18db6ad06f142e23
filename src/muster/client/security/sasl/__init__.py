"""How a client proves its identity: mechanisms.py has what a SASL mechanism says, exchange.py how Kafka carries it."""
