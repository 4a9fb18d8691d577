"""The behavior of Python's sockets, one check a line: `ok` or `FAIL`, and the name of the check. Without the library, the same
lines come over TCP. The argument is an address of this host."""

import array
import errno
import fcntl
import select
import socket
import sys
import termios
import time

HOST = sys.argv[1]
LIMIT = 20


def check(what, good):
    print(("ok   " if good else "FAIL ") + what, flush=True)


def fails(call, *numbers):
    try:
        call()
    except OSError as error:
        return error.errno in numbers
    return False


def readable(*sockets, limit=LIMIT):
    return select.select(sockets, [], [], limit)[0]


def writable(sock, limit=LIMIT):
    return bool(select.select([], [sock], [], limit)[1])


def beginnings():
    listener = socket.socket()
    listener.bind((HOST, 0))
    listener.listen()
    name = listener.getsockname()
    check("bind to port 0 chooses a port", name[1] != 0)
    client = socket.socket()
    client.setblocking(False)
    check("nonblocking connect is in progress", client.connect_ex(name) in (0, errno.EINPROGRESS))
    check("listener becomes readable", readable(listener) == [listener])
    server, peer = listener.accept()
    check("accept returns the name of the client", peer == client.getsockname())
    check("connected socket becomes writable", writable(client))
    check("SO_ERROR is 0", client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)
    check("getpeername is the listener's name", client.getpeername() == name)
    return listener, client, server


def reading(client, server):
    check("recv without data is EAGAIN", fails(lambda: client.recv(1), errno.EAGAIN))
    server.settimeout(0.2)
    try:
        server.recv(1)
        check("recv times out", False)
    except TimeoutError:
        check("recv times out", True)
    server.settimeout(LIMIT)
    client.send(b"abcdef")
    got = b""
    while len(got) < 6:
        readable(server)
        got = server.recv(6, socket.MSG_PEEK)
    check("MSG_PEEK leaves the bytes", server.recv(3, socket.MSG_PEEK) == b"abc")
    check("recv takes all of them", server.recv(10) == b"abcdef")
    client.send(b"xyz")
    count = array.array("i", [0])
    while count[0] < 3:
        readable(server)
        fcntl.ioctl(server, termios.FIONREAD, count)
    check("FIONREAD counts the bytes", count[0] == 3)
    client.send(b"1234")
    # With a time limit, Python makes the descriptor nonblocking, and the flag has no effect.
    server.settimeout(None)
    check("MSG_WAITALL waits for all", server.recv(7, socket.MSG_WAITALL) == b"xyz1234")
    server.settimeout(LIMIT)
    # TCP sends the byte out of band, rsockets within the stream.
    try:
        client.send(b"!", socket.MSG_OOB)
        check("MSG_OOB is sent or refused", True)
    except OSError as error:
        check("MSG_OOB is sent or refused", error.errno in (errno.EOPNOTSUPP, errno.EINVAL))
    twin = server.dup()
    client.send(b"q")
    twin.settimeout(LIMIT)
    got = b""
    while not got.endswith(b"q"):
        got += twin.recv(5)
    check("duplicate reads the same stream", got in (b"q", b"!q"))
    twin.close()
    data, control, flags, _ = (client.send(b"msg"), server.recvmsg(10, 100))[1]
    check("recvmsg has no control message", (data, control, flags) == (b"msg", [], 0))


def flow(client, server):
    client.setblocking(False)
    sent, is_full, limit = 0, False, time.monotonic() + LIMIT
    while sent < 50_000_000 and not is_full and time.monotonic() < limit:
        try:
            sent += client.send(b"z" * 65536)
        except BlockingIOError:
            # Buffers of both sides grow, and data in flight leaves the sender's buffer, after a call has failed.
            is_full = not writable(client, 1)
    check("send fills up", 0 < sent < 50_000_000)
    check("full socket is not writable", is_full)
    got = 0
    while got < sent:
        got += len(server.recv(1 << 20))
    check("all bytes come", got == sent)
    check("socket becomes writable again", writable(client))


def ends(listener, client, server):
    client.shutdown(socket.SHUT_WR)
    check("shutdown is the end for the peer", server.recv(1) == b"")
    server.sendall(b"back")
    client.settimeout(LIMIT)
    check("half-closed socket still receives", client.recv(10) == b"back")
    poll = select.poll()
    poll.register(client, select.POLLIN)
    server.close()
    check("poll reports the end", bool(poll.poll(LIMIT * 1000)))
    client.close()
    refused = lambda: socket.create_connection((HOST, 1), timeout=LIMIT)
    check("connect without a listener is refused", fails(refused, errno.ECONNREFUSED))

    def again():
        second = socket.socket()
        second.bind(listener.getsockname())
        second.listen()

    check("second listener is EADDRINUSE", fails(again, errno.EADDRINUSE))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    server.close()
    readable(client)
    check("close with SO_LINGER 0 is a reset", fails(lambda: client.recv(1), errno.ECONNRESET))

    def write_on():
        for _ in range(1000):
            client.send(b"a")
            time.sleep(0.001)

    check("send after the end fails", fails(write_on, errno.EPIPE, errno.ECONNRESET))


listener, client, server = beginnings()
reading(client, server)
flow(client, server)
ends(listener, client, server)
