"""Kafka's znodes, operations on them as values, and the image of a cluster. Pure."""
