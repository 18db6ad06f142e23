"""The group coordinator on the broker's event loop: which broker coordinates a group, and its events."""
