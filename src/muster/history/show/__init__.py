"""A report as a page and as JSON. Pure."""
