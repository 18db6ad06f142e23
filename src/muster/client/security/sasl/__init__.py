"""How a client authenticates: mechanisms.py has the SASL mechanisms, exchange.py how Kafka carries their messages."""
