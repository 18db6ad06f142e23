"""Servers on this machine, for tests and comparisons. Finds Java and ZooKeeper's jars, starts ZooKeeper and brokers,
and leaves no process behind."""
