"""Servers on this machine, for tests and comparisons: finds Java and ZooKeeper's jars, starts ZooKeeper and brokers,
and leaves no process behind."""
