"""Connects sixteen clients at once to a listener of a short backlog, which accepts once the backlog is full."""

import socket
import sys
import threading

CLIENTS = 16


def burst(backlog):
    listener = socket.socket()
    listener.bind((sys.argv[1], 0))
    listener.listen(backlog)
    start = threading.Barrier(CLIENTS)
    connected = threading.Semaphore(0)
    answers = []

    def client(number):
        peer = socket.socket()
        start.wait()
        peer.connect(listener.getsockname())
        connected.release()
        peer.sendall(bytes([number]))
        answers.append((number, peer.recv(1)))
        peer.close()

    clients = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for thread in clients:
        thread.start()
    for _ in range(backlog):
        assert connected.acquire(timeout=60), "the backlog does not fill"
    listener.settimeout(60)
    for _ in range(CLIENTS):
        peer, _ = listener.accept()
        peer.settimeout(60)
        peer.sendall(peer.recv(1))
        peer.close()
    for thread in clients:
        thread.join()
    listener.close()
    assert sorted(answers) == [(i, bytes([i])) for i in range(CLIENTS)], answers


for backlog in (1, 2, 5, 8):
    burst(backlog)
print("all is well")
