"""The demo's outcome, judged record by record."""
