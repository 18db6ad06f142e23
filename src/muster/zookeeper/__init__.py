"""Kafka's coordination through ZooKeeper: the first two generations of consumer groups, and what keeps them.

`operations.py` is what rules ask of ZooKeeper; `session.py` carries it out, over
`link.py`, the only file that knows kazoo.
"""
