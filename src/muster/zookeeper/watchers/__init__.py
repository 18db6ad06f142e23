"""Scheme 1: members that watch ZooKeeper, and each rebalance on their own. Pure."""
