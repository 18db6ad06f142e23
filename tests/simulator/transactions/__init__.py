"""A whole standalone broker in virtual time, on a disk that fails, and transactional producers.

The broker is the real one, from its request handlers to its files; only sockets, clocks and syncs are the simulation's.
`simulate_transactions` simulates one life of it, which follows from a seed.
"""
