"""The `muster` command. `main.py` knows the names of the sub-commands; each has a module of its own."""
