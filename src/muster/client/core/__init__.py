"""The rules of the clients, without I/O: no sockets, clocks or threads."""
