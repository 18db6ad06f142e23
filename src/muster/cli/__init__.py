"""The `muster` command. `main.py` lists the sub-commands; each is a module."""
