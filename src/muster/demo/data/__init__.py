"""The demo's records, and what its queries make of them. Pure."""
