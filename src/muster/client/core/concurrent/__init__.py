"""Handling a group's records many at a time: the rules, without I/O."""
