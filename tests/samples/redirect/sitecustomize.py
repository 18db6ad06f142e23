"""On PYTHONPATH of a sample: its addresses stay as they are written, and lead to a port that is free on this machine.

Python imports this file at the start of every process, so that samples run word for word though somebody's own Kafka
may listen on 9092. Other samples' ports are left alone.
"""

import os
import socket

WRITTEN, REAL = 9092, int(os.environ["MUSTER_SAMPLE_PORT"])


def _redirected(name):
    real = getattr(socket.socket, name)

    def method(self, address):
        if isinstance(address, tuple) and address[1] == WRITTEN:
            address = (address[0], REAL, *address[2:])
        return real(self, address)

    return method


for _name in ("connect", "connect_ex", "bind"):
    setattr(socket.socket, _name, _redirected(_name))
