"""Sends a megabyte to an echo server, checks the echoed bytes, and stops the server."""

import os
import socket
import subprocess
import sys
import threading

address = (sys.argv[1], int(sys.argv[2]))
sent = bytes(i * i % 251 for i in range(1 << 20))
peer = socket.socket()
peer.connect(address)
# Another descriptor of the same, and the first one goes.
twin = socket.socket(fileno=os.dup(peer.fileno()))
peer.close()
# A vfork child moves its descriptors; those of this process stay the same.
subprocess.run(["true"], stdin=twin, check=True)
try:
    socket.socket(fileno=0).detach()
except OSError:
    pass
else:
    sys.exit("standard input has become a socket")
sender = threading.Thread(target=twin.sendall, args=(sent,))
sender.start()
received = b""
while len(received) < len(sent):
    data = twin.recv(50000)
    assert data, "the end came early"
    received += data
sender.join()
assert received == sent
twin.sendall(b"stop")
assert twin.recv(1) == b""
print("all is well")
