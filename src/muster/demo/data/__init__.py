"""The demo's records, and the results expected from its queries. Pure."""
