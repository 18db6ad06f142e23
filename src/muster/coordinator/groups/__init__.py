"""The rules of groups and of committed offsets. Pure."""
