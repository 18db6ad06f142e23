"""The catalogue of topics, their logs, and what is read from and written to them."""
