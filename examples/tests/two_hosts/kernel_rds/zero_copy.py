"""The sides of `rds_zero_copy` in the examples, on the kernel's sockets.

client OWN PEER SIZE  lets a server read SIZE bytes, and write them back reversed
server OWN N          reads and writes clients' memory, for N requests

Unlike in 2007, kernels export memory together with the message carrying the cookie, without a separate call;
and the completion of an operation is notified.
"""

import sys
import struct
import time

import afrds
from afrds import Memory, Rdma, Socket, parse, pattern

HELLO, READ, WRITE, DONE, REFUSED = range(5)


def message(kind, size=0):
    return struct.pack("!B3xI", kind, size)


def client(own, peer, size):
    sock, peer, size = Socket(parse(own)), parse(peer), int(size)
    for _ in range(240):
        sock.send_soon(message(HELLO), peer)
        try:
            sock.recv_soon(seconds=0.5)
            break
        except TimeoutError:
            pass
    memory = Memory(size, 0x123, pattern(1, size))
    for kind in (READ, WRITE):
        mapped, cookie = afrds.rdma_map(memory, afrds.READWRITE)
        sock.send_soon(message(kind, size), peer, [mapped])
        while (answer := sock.recv_soon(seconds=60).data) == message(HELLO):
            pass
        assert answer == message(DONE, size), answer
        sock.free_mr(cookie.value)
    assert memory.read() == pattern(1, size)[::-1], "the server has written something else"
    assert not any(memory.around()), "the server has written beside it"
    print("written", size)


def server(own, count):
    sock, last, served, early = Socket(parse(own)), None, 0, []
    while served < int(count):
        asked = early.pop(0) if early else sock.recv_soon(seconds=120)
        if asked.data == message(HELLO):
            sock.send_soon(asked.data, asked.address)
            continue
        kind, size = struct.unpack("!B3xI", asked.data)
        (cookie,) = afrds.numbers(asked.control, afrds.RDMA_DEST)
        served += 1
        if kind == READ:
            last = Memory(size, 0x10)
            flags = afrds.NOTIFY_ME | afrds.FENCE
        else:
            last.write(last.read()[::-1])
            flags = afrds.NOTIFY_ME | afrds.READWRITE
        rdma = Rdma(cookie, [last], flags, token=served)
        sock.send_soon(message(DONE, size), asked.address, [rdma.message])
        told, overtook = afrds.completion(sock)
        assert told == (served, afrds.SUCCESS), told
        early += overtook
    # Closing a socket drops unacknowledged messages.
    time.sleep(2)
    print("requests", served)


if __name__ == "__main__":
    roles = {"client": client, "server": server}
    if len(sys.argv) < 2 or sys.argv[1] not in roles:
        sys.exit(__doc__)
    roles[sys.argv[1]](*sys.argv[2:])
