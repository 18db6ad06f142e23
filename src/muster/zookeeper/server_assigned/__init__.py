"""Scheme 2: members that the coordinator assigns partitions to. Pure."""
