"""Random sequences of calls on a listener, a client and a server, one call with its result a line. Without the library, the same
calls go to TCP. The arguments are the number of sequences and an address of this host.

Left out, as documented in CALLS.md: sends after the peer's close, closes with unread data, and shutdowns of reading."""

import errno
import fcntl
import random
import select
import socket
import struct
import sys
import termios
import time

SEQUENCES, HOST = int(sys.argv[1]), sys.argv[2]
LIMIT = 20
CALLS = 25
SOL_SOCKET = socket.SOL_SOCKET

OPTIONS = [(SOL_SOCKET, name) for name in (2, 3, 4, 5, 6, 9, 10, 15, 30, 38, 39)]
OPTIONS += [(socket.IPPROTO_TCP, name) for name in (1, 3, 4, 5, 6, 7, 8, 18)]
OPTIONS += [(socket.IPPROTO_IP, name) for name in (1, 2, 10)]

RECV_FLAGS = [
    0,
    socket.MSG_PEEK,
    socket.MSG_WAITALL | socket.MSG_DONTWAIT,
    socket.MSG_PEEK | socket.MSG_WAITALL | socket.MSG_DONTWAIT,
    socket.MSG_OOB,
    socket.MSG_ERRQUEUE,
    socket.MSG_TRUNC,
]

CALL_NAMES = ["send"] * 5 + ["recv"] * 6 + ["poll"] * 6 + ["option", "set_option"] * 2
CALL_NAMES += ["finish", "close", "abort", "unread", "unacknowledged", "at_mark", "name", "peer_name", "flags"]
CALL_NAMES += ["send_to", "recv_from", "connect", "listen", "accept", "pending_error"]


def number(sock, request):
    buffer = bytearray(4)
    fcntl.ioctl(sock, request, buffer)
    return struct.unpack("i", buffer)[0]


class Sockets:
    def __init__(self):
        self.listener = socket.socket()
        self.listener.bind((HOST, 0))
        self.listener.listen(5)
        self.address = self.listener.getsockname()
        client = socket.socket()
        # The listener has one connection, and a second client has none.
        client.connect(self.address)
        server, peer = self.listener.accept()
        self.known = {self.address: "listener", peer: "client"}
        self.all = {"listener": self.listener, "client": client, "server": server, "other": socket.socket()}
        for sock in self.all.values():
            sock.setblocking(False)
        self.has_end = False

    def peer_of(self, owner):
        return self.all.get({"client": "server", "server": "client"}.get(owner))

    def wait(self, is_done):
        end = time.monotonic() + LIMIT
        while not is_done():
            assert time.monotonic() < end, "the peer sees no effect"
            time.sleep(0.001)

    def wait_for_end(self, peer, events=select.POLLRDHUP):
        poll = select.poll()
        poll.register(peer, events)
        assert poll.poll(LIMIT * 1000), "the peer sees no end"

    def delivered(self, owner, send):
        peer = self.peer_of(owner)
        before = number(peer, termios.FIONREAD) if peer else 0
        sent = send()
        if peer:
            self.wait(lambda: number(peer, termios.FIONREAD) >= before + sent)
        return sent

    def send(self, owner, size, flags):
        return self.delivered(owner, lambda: self.all[owner].send(bytes(size), flags))

    def send_to(self, owner, size):
        return self.delivered(owner, lambda: self.all[owner].sendto(bytes(size), self.address))

    def recv(self, owner, size, flags):
        return len(self.all[owner].recv(size, flags))

    def recv_from(self, owner, size):
        data, peer = self.all[owner].recvfrom(size)
        return len(data), peer

    def poll(self, owner, events):
        poll = select.poll()
        poll.register(self.all[owner], events)
        ready = dict(poll.poll(0)).get(self.all[owner].fileno(), 0)
        # The end of the connection is reported when the peer has closed.
        return ready & ~select.POLLHUP if self.has_end else ready

    def option(self, owner, option):
        return self.all[owner].getsockopt(*option, 16).hex()

    def set_option(self, owner, option, value, size):
        self.all[owner].setsockopt(*option, struct.pack("<q", value)[:size])

    def finish(self, owner):
        self.all[owner].shutdown(socket.SHUT_WR)
        if peer := self.peer_of(owner):
            self.wait_for_end(peer)

    def close(self, owner):
        peer, sock = self.peer_of(owner), self.all[owner]
        while owner != "listener":
            try:
                if not sock.recv(1 << 16):
                    break
            except OSError:
                break
        sock.close()
        del self.all[owner]
        if peer:
            self.has_end = True
            self.wait_for_end(peer)

    def abort(self, owner):
        self.all[owner].setsockopt(SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer = self.peer_of(owner)
        self.close(owner)
        if peer:
            self.wait_for_end(peer, 0)

    def unread(self, owner):
        return number(self.all[owner], termios.FIONREAD)

    def unacknowledged(self, owner):
        if owner in ("client", "server") and not self.has_end:
            self.wait(lambda: number(self.all[owner], termios.TIOCOUTQ) == 0)
        elif owner == "listener":
            return number(self.all[owner], termios.TIOCOUTQ)
        return 0

    def at_mark(self, owner):
        return number(self.all[owner], 0x8905)

    def name(self, owner):
        name = self.all[owner].getsockname()
        return self.known.get(name, "unknown" if name[1] else "unbound")

    def peer_name(self, owner):
        return self.known.get(self.all[owner].getpeername())

    def flags(self, owner):
        return fcntl.fcntl(self.all[owner], fcntl.F_GETFL)

    def connect(self, owner):
        if owner == "other":
            return None
        return self.all[owner].connect(self.address)

    def listen(self, owner, backlog):
        if owner == "other":
            return None
        return self.all[owner].listen(backlog)

    def accept(self, owner):
        return self.all[owner].accept()

    def pending_error(self, owner):
        return self.all[owner].getsockopt(SOL_SOCKET, socket.SO_ERROR)


def arguments(choose, call):
    sizes = [0, 1, 10, 1000, 5000]
    if call == "send":
        return [choose(sizes), choose([0, 0, socket.MSG_NOSIGNAL, socket.MSG_DONTROUTE, socket.MSG_EOR])]
    if call in ("send_to", "recv_from"):
        return [choose(sizes)]
    if call == "recv":
        return [choose([0, 1, 10, 4096, 20_000]), choose(RECV_FLAGS)]
    if call == "poll":
        return [choose([0, 1, 2, 4, 5, 0x2000, 0x2005, 0x44, 0x104, 0x3FFF])]
    if call == "option":
        return [choose(OPTIONS)]
    if call == "set_option":
        settable = [option for option in OPTIONS if option != (SOL_SOCKET, socket.SO_DONTROUTE)]
        return [choose(settable), choose([0, 1, 2, -1, 60, 300]), choose([1, 2, 4, 4, 4, 8])]
    if call == "listen":
        return [choose([0, 1, 5])]
    return []


def result(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]


def run(seed):
    choose = random.Random(seed).choice
    sockets = Sockets()
    for _ in range(CALLS):
        owner, call = choose(["client", "client", "server", "server", "listener", "other"]), choose(CALL_NAMES)
        passed = arguments(choose, call)
        is_left_out = call in ("send", "send_to", "unacknowledged") and sockets.has_end and owner != "other"
        if owner not in sockets.all or is_left_out:
            continue
        print(seed, owner, call, passed, result(lambda: getattr(sockets, call)(owner, *passed)), flush=True)
    for sock in sockets.all.values():
        sock.close()


for seed in range(SEQUENCES):
    run(seed)
