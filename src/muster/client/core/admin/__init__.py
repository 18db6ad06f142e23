"""Admin requests and answers as values."""
