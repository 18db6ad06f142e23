"""Commands that observe: doctor, history, lag, health."""
