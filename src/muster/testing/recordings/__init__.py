"""Recordings of what happens to the groups of a broker, and their replay."""
