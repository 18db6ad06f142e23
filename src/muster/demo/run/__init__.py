"""The demo's processes."""
