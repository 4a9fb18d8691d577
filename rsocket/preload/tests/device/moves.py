"""Connections of one host to servers of several processes: `moves.py ADDRESS PART`."""

import errno
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

ADDRESS, PART = sys.argv[1:3]
WORKERS = 4
CLIENTS = 20
SIZE = 20000
# Of each process, in seconds.
LIMIT = 150


def listener(options=()):
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in options:
        listening.setsockopt(*option)
    listening.bind((ADDRESS, 0))
    listening.listen(100)
    return listening, listening.getsockname()


def content(number):
    """What a client sends: no two clients send the same."""
    return struct.pack("!I", number) * (SIZE // 4)


def is_moved(connection):
    """The kernel's socket of a moved connection is a local one."""
    return os.readlink(f"/proc/self/fd/{connection.fileno()}") and not is_tcp(connection)


def is_tcp(connection):
    inode = os.readlink(f"/proc/self/fd/{connection.fileno()}").split("[")[1].rstrip("]")
    with open("/proc/net/tcp") as table:
        return any(line.split()[9] == inode for line in table.readlines()[1:])


class Fork:
    """A child, whose success is checked."""

    def __init__(self, function, *arguments):
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(LIMIT)
            status = 1
            try:
                function(*arguments)
                status = 0
            finally:
                os._exit(status)

    def check(self):
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0

    def end(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


def event_loop(listening, edge):
    """Echoes, with one thread and nonblocking calls for all connections."""
    listening.setblocking(False)
    poller = select.epoll()
    poller.register(listening, select.EPOLLIN)
    flags = select.EPOLLRDHUP | select.EPOLLIN | (select.EPOLLOUT | select.EPOLLET if edge else 0)
    connections, unsent, got = {}, {}, {}
    while True:
        for fd, events in poller.poll():
            if fd == listening.fileno():
                try:
                    connection, _ = listening.accept()
                except BlockingIOError:
                    continue
                connection.setblocking(False)
                connections[connection.fileno()] = connection
                unsent[connection.fileno()] = b""
                got[connection.fileno()] = 0
                poller.register(connection, flags)
                continue
            # The move looks like no end of the stream.
            assert not events & (select.EPOLLRDHUP | select.EPOLLHUP) or got[fd] == SIZE, (events, got[fd])
            serve(poller, connections, unsent, got, fd, edge)


def serve(poller, connections, unsent, got, fd, edge):
    try:
        while data := connections[fd].recv(65536):
            unsent[fd] += data
            got[fd] += len(data)
        poller.unregister(fd)
        connections.pop(fd).close()
        return
    except BlockingIOError:
        pass
    try:
        while unsent[fd]:
            unsent[fd] = unsent[fd][connections[fd].send(unsent[fd]) :]
    except BlockingIOError:
        pass
    if not edge:
        poller.modify(fd, select.EPOLLRDHUP | select.EPOLLIN | (select.EPOLLOUT if unsent[fd] else 0))


def clients_in_event_loop(name, first, edge):
    """As many connections as a browser or a proxy has, in one thread."""
    poller = select.epoll()
    connections, unsent, got = {}, {}, {}
    for number in range(first, first + CLIENTS):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(name)
        fd = connection.fileno()
        connections[fd], unsent[fd], got[fd] = (number, connection), content(number), b""
        flags = select.EPOLLRDHUP | select.EPOLLIN | select.EPOLLOUT
        poller.register(connection, flags | (select.EPOLLET if edge else 0))
    moved = 0
    while connections:
        for fd, events in poller.poll():
            assert not events & (select.EPOLLRDHUP | select.EPOLLHUP), events
            number, connection = connections[fd]
            try:
                while unsent[fd]:
                    unsent[fd] = unsent[fd][connection.send(unsent[fd]) :]
                if not edge:
                    poller.modify(fd, select.EPOLLRDHUP | select.EPOLLIN)
            except BlockingIOError:
                pass
            try:
                while len(got[fd]) < SIZE:
                    data = connection.recv(65536)
                    assert data, number
                    got[fd] += data
            except BlockingIOError:
                continue
            assert got[fd] == content(number), number
            moved += is_moved(connection)
            del connections[fd]
            poller.unregister(fd)
            connection.close()
    assert moved == CLIENTS, moved


def workers(edge):
    """A server of several processes with event loops, and clients with event loops and with blocking calls."""
    listening, name = listener()
    servers = [Fork(event_loop, listening, edge) for _ in range(WORKERS)]
    clients = [Fork(clients_in_event_loop, name, 100 * index, edge) for index in range(2)]
    clients.append(Fork(blocking_clients, name))
    for client in clients:
        client.check()
    for server in servers:
        server.end()


def strict():
    """A client in an event loop to which readiness without data is an error, as to wrk."""
    listening, name = listener()
    servers = [Fork(event_loop, listening, False) for _ in range(WORKERS)]
    poller = select.epoll()
    unsent, got = {}, {}
    connections = {}
    for number in range(CLIENTS):
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex(name)
        fd = connection.fileno()
        connections[fd], unsent[fd], got[fd] = connection, content(number), b""
        poller.register(connection, select.EPOLLIN | select.EPOLLOUT)
    moved = 0
    while connections:
        for fd, events in poller.poll():
            if events & select.EPOLLIN:
                got[fd] += connections[fd].recv(65536)
            if unsent[fd] and events & select.EPOLLOUT:
                try:
                    unsent[fd] = unsent[fd][connections[fd].send(unsent[fd]) :]
                except BlockingIOError:
                    continue
            if not unsent[fd]:
                poller.modify(fd, select.EPOLLIN)
            if len(got[fd]) == SIZE:
                moved += is_moved(connections[fd])
                connections.pop(fd).close()
    assert moved == CLIENTS, moved
    for server in servers:
        server.end()


def blocking_clients(name):
    for number in range(1000, 1000 + CLIENTS):
        with socket.create_connection(name) as connection:
            # With a time-out: nonblocking calls and `poll`.
            connection.settimeout(100 if number % 2 else None)
            connection.sendall(content(number))
            got = b""
            while len(got) < SIZE:
                data = connection.recv(65536)
                assert data, number
                got += data
            assert got == content(number) and is_moved(connection), number


def one_each(listening, count):
    """Each process serves some connections with blocking calls, and keeps them."""
    kept = []
    for _ in range(count):
        connection, peer = listening.accept()
        kept.append(connection)
        data = connection.recv(100)
        connection.sendall(b"%d " % peer[1] + data)
    time.sleep(100)


def ask(connection, text):
    port = connection.getsockname()[1]
    connection.sendall(text)
    answer = connection.recv(100)
    assert answer == b"%d " % port + text, (port, text, answer)
    # The addresses are those of the TCP connection.
    assert is_moved(connection) and connection.getsockname()[1] == port


def used_late():
    """Two client processes, whose connections are used in another order than they were made and accepted."""
    listening, name = listener()
    servers = [Fork(one_each, listening, 1) for _ in range(3)]
    first = socket.create_connection(name)
    second = socket.create_connection(name)
    third = socket.create_connection(name)

    def other():
        ask(second, b"second")
        ask(third, b"third")

    client = Fork(other)
    second.close()
    client.check()
    third.close()
    ask(first, b"first")
    for server in servers:
        server.end()


def silent():
    """A connection without this library that says nothing, and one that does not use its connection."""
    listening, name = listener()
    # Numbers are not known to the library.
    plain = socket.socket(fileno=__import__("ctypes").CDLL(None).syscall(41 if os.uname().machine == "x86_64" else 198, 2, 1, 0))
    plain.connect(name)
    unused = socket.create_connection(name)
    servers = [Fork(one_each, listening, 1) for _ in range(8)]
    for number in range(4):
        with socket.create_connection(name) as connection:
            ask(connection, b"honest %d" % number)
    # No offer was sent to a peer without the library.
    plain.sendall(b"plain")
    assert plain.recv(100) == b"%d plain" % plain.getsockname()[1]
    ask(unused, b"unused")
    for server in servers:
        server.end()


def deferred():
    """A server that is to be told of connections with data only."""
    listening, name = listener([(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)])
    server = Fork(one_each, listening, 1)
    with socket.create_connection(name) as connection:
        ask(connection, b"deferred")
    server.end()


def segments():
    """Programs that limit the segments of TCP, as BIND's: above and below the library's sizes."""
    maximum = (socket.IPPROTO_TCP, socket.TCP_MAXSEG)
    for limit, moves in ((1220, True), (600, False)):
        for limits in ("client", "server", "listener"):
            listening, name = listener([(*maximum, limit)] if limits == "server" else ())
            if limits == "listener":
                listening.setsockopt(*maximum, limit)
            server = Fork(one_each, listening, 1)
            connection = socket.socket()
            if limits == "client":
                connection.setsockopt(*maximum, limit)
            connection.connect(name)
            connection.sendall(b"limited")
            assert connection.recv(100).endswith(b" limited")
            assert is_moved(connection) == moves, (limits, limit)
            connection.close()
            server.end()


def low_water():
    """A program that sets `SO_RCVLOWAT` before a move: TCP; and during one: refused, as by an rsocket."""
    mark = (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
    listening, name = listener()
    server = Fork(one_each, listening, 1)
    with socket.socket() as connection:
        connection.setsockopt(*mark, 200)
        connection.connect(name)
        connection.sendall(b"x" * 300)
        assert connection.recv(100).endswith(b"x") and is_tcp(connection)
    server.end()
    listening, name = listener()
    connection = socket.create_connection(name)
    poller = select.epoll()
    poller.register(connection, select.EPOLLIN)
    assert poller.poll(0) == []
    assert connection.getsockopt(*mark) == 1
    connection.setsockopt(*mark, 1)
    try:
        connection.setsockopt(*mark, 200)
        raise AssertionError("is set")
    except OSError as error:
        assert error.errno == errno.ENOTSUP, error
    server = Fork(one_each, listening, 1)
    ask(connection, b"moved")
    server.end()


def greets(listening):
    for _ in range(2):
        connection, _ = listening.accept()
        connection.sendall(b"greeting")
        assert connection.recv(100) == b"answer" and is_moved(connection)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


def by_select(connection):
    assert select.select([connection], [], [])[0] == [connection]


def by_poll(connection):
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    assert poller.poll()


def greeting():
    """A server that sends first; a client that waits with `poll`, and one that waits with `select`."""
    listening, name = listener()
    server = Fork(greets, listening)
    for wait in (by_select, by_poll):
        with socket.create_connection(name) as connection:
            wait(connection)
            assert connection.recv(100) == b"greeting"
            connection.sendall(b"answer")
            assert connection.recv(100) == b"" and is_moved(connection)
    server.check()


def unanswered(listening):
    connection, _ = listening.accept()
    # The process takes up the connection only when the client has given up.
    ready = connection.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    assert ready and os.read(0, 1) == b"x"
    assert connection.recv(100) == b"by TCP" and is_tcp(connection)
    connection.sendall(b"as well")


def late():
    """The client gives up, and the server finds its data by TCP: `RS_FORK_WAIT` is 0."""
    listening, name = listener()
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    server = Fork(unanswered, listening)
    with socket.create_connection(name) as connection:
        connection.sendall(b"by TCP")
        os.write(writing, b"x")
        assert connection.recv(100) == b"as well" and is_tcp(connection)
    server.check()


def changes_user(listening):
    """Moves a connection, changes its group, and moves another. Offers a third, and changes its user before the answer."""
    first = listening.accept()[0]
    assert first.recv(100) == b"before"
    os.setgid(1000)
    first.sendall(b"after")
    second = listening.accept()[0]
    assert second.recv(100) == b"second"
    third = listening.accept()[0]
    assert select.select([third], [], [], 0)[0] == []
    os.setuid(1000)
    second.sendall(b"moved")
    third.sendall(b"by TCP")
    assert [connection.recv(100) for connection in (first, second, third)] == [b"end"] * 3


def user():
    """A server that changes its user after its first bytes, as rsync's, and between an offer and its confirmation."""
    listening, name = listener()
    server = Fork(changes_user, listening)
    first = socket.create_connection(name)
    first.sendall(b"before")
    assert first.recv(100) == b"after" and is_moved(first)
    second = socket.create_connection(name)
    second.sendall(b"second")
    third = socket.create_connection(name)
    assert second.recv(100) == b"moved" and is_moved(second)
    assert third.recv(100) == b"by TCP" and is_tcp(third)
    for connection in (first, second, third):
        connection.sendall(b"end")
    server.check()


def leaves_root(listening, root):
    """Changes its root folder and its user before the first use of a connection."""
    connection = listening.accept()[0]
    os.chroot(root)
    os.chdir("/")
    os.setuid(1000)
    assert connection.recv(100) == b"first"
    connection.sendall(b"answer")
    assert connection.recv(100) == b"end"


def root():
    """A server in a root folder without devices, as vsftpd's: TCP; in one with them, RDMA."""
    for folder, moves in (("/tmp", False), ("/", True)):
        listening, name = listener()
        server = Fork(leaves_root, listening, folder)
        connection = socket.create_connection(name)
        connection.sendall(b"first")
        assert connection.recv(100) == b"answer" and is_moved(connection) == moves, folder
        connection.sendall(b"end")
        server.check()


def threaded_server(listening):
    """Echoes, with a thread for each connection."""

    def serve(connection):
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.close()

    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()


def threads():
    """Two threads of a client use a connection for the first time at once."""
    listening, name = listener()
    server = Fork(threaded_server, listening)
    failed = []

    def use(number):
        got = bytearray()

        def receive():
            while len(got) < SIZE and (data := connection.recv(65536)):
                got.extend(data)

        with socket.create_connection(name) as connection:
            receiver = threading.Thread(target=receive)
            receiver.start()
            connection.sendall(content(number))
            receiver.join()
            if got != content(number) or not is_moved(connection):
                failed.append((number, len(got)))

    for _ in range(4):
        clients = [threading.Thread(target=use, args=(number,)) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert not failed, failed
    server.end()


PARTS = {
    "threads": threads,
    "workers-level": lambda: workers(False),
    "workers-edge": lambda: workers(True),
    "strict": strict,
    "used-late": used_late,
    "silent": silent,
    "deferred": deferred,
    "segments": segments,
    "low-water": low_water,
    "greeting": greeting,
    "late": late,
    "user": user,
    "root": root,
}
signal.alarm(LIMIT)
PARTS[PART]()
print("all is well")
