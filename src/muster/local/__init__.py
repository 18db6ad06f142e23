"""Servers on this machine, for trying and comparing: finds Java and ZooKeeper's jars, starts ZooKeeper and brokers, and
leaves no process behind."""
