"""For a sample's PYTHONPATH: its addresses stay as they are written, but lead to ports that are free on this machine.

Python imports this file at the start of every process, so that samples run unchanged even if another Kafka listens on
9092. `MUSTER_SAMPLE_PORTS` has pairs of a written and a real port; other ports are left alone.
"""

import os
import socket

REAL = {
    int(written): int(real)
    for written, real in (pair.split(":") for pair in os.environ["MUSTER_SAMPLE_PORTS"].split(","))
}


def _redirected(name):
    real = getattr(socket.socket, name)

    def method(self, address):
        if isinstance(address, tuple) and address[1] in REAL:
            address = (address[0], REAL[address[1]], *address[2:])
        return real(self, address)

    return method


for _name in ("connect", "connect_ex", "bind"):
    setattr(socket.socket, _name, _redirected(_name))
