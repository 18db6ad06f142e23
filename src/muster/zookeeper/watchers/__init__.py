"""Scheme 1: members that watch ZooKeeper and rebalance by themselves. Pure."""
