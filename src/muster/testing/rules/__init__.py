"""Faults and waits as data: what a fault matches, when it strikes and what it answers; what a wait lacks."""
