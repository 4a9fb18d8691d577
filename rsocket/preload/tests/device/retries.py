"""A client repeats a refused attempt on the same socket until a server listens. The argument is an address of this host."""

import errno
import select
import socket
import sys

HOST = sys.argv[1]
ATTEMPTS = 3


def attempt(client, peer):
    error = client.connect_ex(peer)
    if error == errno.EINPROGRESS:
        select.select([], [client], [])
        error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return error


def reach(is_blocking):
    # Both are chosen first, so that no other socket takes the port.
    listener, client = socket.socket(), socket.socket()
    listener.bind((HOST, 0))
    peer = listener.getsockname()
    client.setblocking(is_blocking)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert attempt(client, peer) == errno.ECONNREFUSED
    listener.listen()
    # The kernel's first call after a failure in the background fails as well.
    assert 0 in (attempt(client, peer) for _ in range(ATTEMPTS))
    server, _ = listener.accept()
    client.send(b"x")
    assert server.recv(1) == b"x"
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    client.setblocking(True)
    server.close()
    assert client.recv(1) == b""


for is_blocking in (True, False):
    reach(is_blocking)
print("connected")
