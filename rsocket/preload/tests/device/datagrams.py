"""Echoes datagrams between two sockets, one of which is polled; and some that no RDMA device carries."""

import select
import socket
import sys

address = sys.argv[1]
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((address, 0))
server.setblocking(False)
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.connect(server.getsockname())
client.settimeout(20)
poller = select.epoll()
poller.register(server, select.EPOLLIN)
for number in range(500):
    message = bytes([number % 251]) * (number % 900)
    client.send(message)
    assert poller.poll(20) == [(server.fileno(), select.EPOLLIN)]
    received, peer = server.recvfrom(4096)
    assert received == message and peer == client.getsockname()
    assert server.sendto(received, peer) == len(message)
    assert client.recv(4096) == message
assert not select.select([server], [], [], 0)[0]

# The loopback interface has no RDMA device; a plain UDP socket receives there.
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP)
plain.bind(("127.0.0.2", 0))
plain.connect(("127.0.0.2", plain.getsockname()[1]))
plain.send(b"to myself")
assert plain.recv(100) == b"to myself"
print("all is well")
