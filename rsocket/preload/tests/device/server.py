"""Echoes all received bytes, to any number of peers, until one sends `stop`."""

import selectors
import socket
import sys

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], 0))
listener.listen()
listener.setblocking(False)
print(listener.getsockname()[1], flush=True)
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
waiting = {}


def forget(peer):
    selector.unregister(peer)
    del waiting[peer]
    peer.close()


running = True
while running:
    for key, events in selector.select():
        peer = key.fileobj
        if peer is listener:
            peer, _ = listener.accept()
            peer.setblocking(False)
            waiting[peer] = b""
            selector.register(peer, selectors.EVENT_READ)
            continue
        if events & selectors.EVENT_READ:
            data = peer.recv(100000)
            if not data or data == b"stop":
                running = data != b"stop"
                forget(peer)
                continue
            waiting[peer] += data
        if waiting[peer]:
            try:
                waiting[peer] = waiting[peer][peer.send(waiting[peer]) :]
            except BlockingIOError:
                pass
        more = selectors.EVENT_WRITE if waiting[peer] else 0
        selector.modify(peer, selectors.EVENT_READ | more)
