"""The producers of a partition: their sequences, and their transactions."""
