"""The demo's report and its live view."""
