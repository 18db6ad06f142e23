"""Commands that look: doctor, history, lag, health."""
