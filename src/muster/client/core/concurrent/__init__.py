"""The rules for handling many records of a group at a time, without I/O."""
