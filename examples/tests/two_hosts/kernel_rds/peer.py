"""One side of the two-host RDS tests, on the kernel's sockets.

serve OWN             answers: echoes, writes and reads the requester's memory, until a stop message
sizes OWN PEER        sends messages of many sizes, echoed by the server
rdma OWN PEER [N..]   lets the server write and read memory of these sizes, at different offsets within a page
stop OWN PEER         sends a stop message to a server
ping IP PEER-IP N     sends messages to port 0, answered by the host itself
pinged IP N           waits until this host has answered N pings
services IP           prints the types of service of all connections
stale IP              prints the number of connection requests from hosts with an existing connection
flow OWN PEER S PACE  sends numbered messages in both directions for S seconds; none may be missing, duplicated
                      or reordered
hashes OWN PEER N     sends N messages in both directions, and prints a checksum of the messages of each direction
load OWN PEER N M     sends messages in both directions in incarnation N of this side, until enough have arrived
                      from incarnation M of the other; with M = 0, then aborts
sink OWN PEER N       sends N messages without answers to a server, and counts acknowledgements
stall OWN PEER N      like sink, to a server that stops meanwhile, and continues
wrong OWN PEER        writes to unregistered memory, between messages echoed by a server
link_down OWN C R N   reads and writes the other's memory, and exchanges long messages, during N link cuts
                      (command C, restored by R): each operation ends once, with the reported status
slow OWN S            reads nothing for S seconds, with a receive buffer of 20 000 bytes
press OWN PEER        sends to a slow receiver until refused, and waits for the congestion notification
calls IP              checks the error numbers of refused calls
child OWN             checks the calls available to child processes of a parent with a socket, where fewer than
                      in the kernel
info OWN              prints all tables of information, in hexadecimal, with messages pending

OWN and PEER are IP:PORT.
"""

import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib

import afrds
from afrds import Memory, Rdma, Socket, parse, pattern

SIZES = [0, 1, 63, 4095, 4096, 4097, 8192, 10_000, 65_536, 106_496, 1 << 20]
OFFSETS = [0, 0x100, 0xFFF]
ROOM = 2 << 20

# Constants absent from Python's `socket`.
SO_TIMESTAMP = 29

# First byte of a request; the seed of the pattern and the number of bytes follow.
ECHO, WRITE, READ, STOP, SINK, STALL = b"EWRQDS"


def open_socket(own):
    sock = Socket(parse(own))
    sock.limits(ROOM, ROOM)
    return sock


# Message repeated until the peer is ready: messages to an unbound port are lost.
HELLO = b"hello"


def meet(sock, peer):
    """Waits until the peer has created the socket."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        sock.send_soon(HELLO, peer)
        if sock.poll(select.POLLIN, 0.5) & select.POLLIN:
            try:
                if sock.recv().data == HELLO:
                    # The peer may have been ready before its message was received.
                    sock.send_soon(HELLO, peer)
                    return
            except BlockingIOError:
                pass
    raise TimeoutError(f"{peer} says nothing")


def hear(sock, seconds=30):
    """Receives the next message other than `HELLO`."""
    while True:
        got = sock.recv_soon(seconds=seconds)
        if got.data != HELLO:
            return got


def request(kind, seed=0, size=0, data=b""):
    return struct.pack("!BBI", kind, seed, size) + data


def serve(own):
    sock = open_socket(own)
    print("serves", flush=True)
    served, early = {}, []
    while True:
        asked = early.pop(0) if early else sock.recv_soon(seconds=300)
        if asked.data == HELLO:
            sock.send_soon(HELLO, asked.address)
            continue
        kind, seed, size = struct.unpack_from("!BBI", asked.data)
        served[kind] = served.get(kind, 0) + 1
        if kind == ECHO:
            sock.send_soon(asked.data, asked.address)
        elif kind in (WRITE, READ):
            (cookie,) = afrds.numbers(asked.control, afrds.RDMA_DEST)
            early += operate(sock, asked.address, kind, seed, size, cookie)
        elif kind == STOP:
            sock.send_soon(asked.data, asked.address)
            # Closing a socket drops unacknowledged messages.
            time.sleep(2)
            break
    print("served", " ".join(f"{chr(kind)}{count}" for kind, count in sorted(served.items())))


def operate(sock, client, kind, seed, size, cookie):
    """Returns the messages received before the completion: the next request may overtake it."""
    local = Memory(size, 0x10, pattern(seed, size) if kind == WRITE else b"")
    flags = afrds.NOTIFY_ME | (afrds.READWRITE if kind == WRITE else afrds.FENCE)
    rdma = Rdma(cookie, [local], flags, token=seed + 1000)
    sock.send_soon(request(kind, seed, size), client, [rdma.message])
    told, early = afrds.completion(sock)
    assert told == (seed + 1000, afrds.SUCCESS), told
    assert local.read() == pattern(seed, size), f"{size} bytes were read wrong"
    return early


def sizes(own, peer):
    sock, peer = open_socket(own), parse(peer)
    meet(sock, peer)
    for seed, size in enumerate(SIZES):
        data = request(ECHO, seed, size, pattern(seed, size))[: max(size, 6)]
        sock.send_soon(data, peer)
        got = hear(sock)
        assert got.address == peer and got.data == data, f"{size} bytes came back otherwise"
    print("echoed", len(SIZES))


def rdma(own, peer, *wanted):
    sock, peer = open_socket(own), parse(peer)
    meet(sock, peer)
    seed = 0
    for size in map(int, wanted or ["1", "4096", "20000", str(1 << 20)]):
        for offset in OFFSETS:
            for kind in (WRITE, READ):
                seed += 1
                memory = Memory(size, offset, pattern(seed, size) if kind == READ else b"")
                mapped, cookie = afrds.rdma_map(memory, afrds.READWRITE | afrds.USE_ONCE)
                sock.send_soon(request(kind, seed, size), peer, [mapped])
                got = hear(sock)
                assert got.data == request(kind, seed, size), got
                assert memory.read() == pattern(seed, size), f"{size} at {offset:#x} differ"
                assert not any(memory.around()), "bytes beside it were written"
                refused(errno.EINVAL, sock.free_mr, cookie.value)
    print("operations", seed)


def stop(own, peer):
    sock, peer = open_socket(own), parse(peer)
    meet(sock, peer)
    sock.send_soon(request(STOP), peer)
    hear(sock)
    print("stopped")


def ping(own, peer, count):
    sock = Socket((own, 0))
    for _ in range(int(count)):
        sock.send_soon(b"", (peer, 0))
        got = sock.recv_soon()
        assert (got.data, got.address) == (b"", (peer, 0)), got
    print("pongs", count)


def pinged(own, count):
    sock, limit = Socket((own, 0)), time.monotonic() + 240
    while afrds.counters(sock)["recv_ping"] < int(count):
        if time.monotonic() > limit:
            raise TimeoutError(f"fewer than {count} pings")
        time.sleep(0.1)


def services(own):
    connections = Socket((own, 0)).elements(afrds.INFO_CONNECTIONS)
    print("services", *sorted(struct.unpack_from("=QQ24xBB", one)[3] for one in connections))


def stale(own):
    print("stale", afrds.counters(Socket((own, 0)))["ib_listen_closed_stale"])


# Number of the last message of a side, and of the answer.
LAST, HEARD = 1 << 63, 1 << 62

# Seconds for the acknowledgement of the answer, over a connection that may have to be established again.
LAST_ACK = 30


def flow(own, peer, seconds, pace):
    """Sends numbered messages, at intervals of `pace` seconds."""
    sock, peer = open_socket(own), parse(peer)
    sock.limits(200_000, 200_000)
    meet(sock, peer)
    end, pace = time.monotonic() + float(seconds), float(pace)
    sent, seen, wrong, due, gap = 0, 0, [], 0, 0
    last_seen, is_last_sent, is_heard, owes = time.monotonic(), False, False, False
    peer_is_over = None
    quiet = None
    # Closing the socket would discard the answer to the peer's last message. The peer may leave before it acknowledges it.
    while quiet is None or time.monotonic() < quiet or waiting(sock) and time.monotonic() < quiet + LAST_ACK:
        now = time.monotonic()
        if now > end + 90:
            raise TimeoutError(f"sent {sent}, seen {seen}, {is_last_sent} {is_heard} {peer_is_over} {wrong}")
        sock.poll(select.POLLIN, min(0.05, max(0, due - now)))
        while True:
            try:
                data = sock.recv().data
            except BlockingIOError:
                break
            if data in (b"", HELLO):
                continue
            now = time.monotonic()
            gap, last_seen = max(gap, now - last_seen), now
            (number,) = struct.unpack_from("!Q", data)
            if number == HEARD:
                is_heard = True
            elif number & LAST:
                peer_is_over, owes = number ^ LAST, True
                if peer_is_over != seen:
                    wrong.append(f"{seen} of {peer_is_over}")
            else:
                if number != seen or data[8:] != pattern(number % 256, len(data) - 8):
                    wrong.append(f"{number} instead of {seen}")
                seen = number + 1
        try:
            if owes:
                sock.send(struct.pack("!Q", HEARD), peer)
                owes = False
            elif now < end and now >= due:
                size = [0, 100, 1000, 5000][sent % 4]
                sock.send(struct.pack("!Q", sent) + pattern(sent % 256, size), peer)
                sent, due = sent + 1, now + pace
            elif now >= end and not is_last_sent:
                sock.send(struct.pack("!Q", sent | LAST), peer)
                is_last_sent = True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
            time.sleep(0.01)
        if quiet is None and is_heard and peer_is_over is not None and not owes:
            quiet = time.monotonic() + 3
    print(f"flow sent {sent} seen {seen} wrong {len(wrong)} gap {gap:.1f}", *wrong[:5])
    if wrong:
        sys.exit(1)


# Seconds without progress over a faulty link, whose connections may break again and again.
FAULTY_LINK_LIMIT = 150

# Message of a side after the acknowledgement of all of its messages.
END = b"end"


def hashes(own, peer, count):
    sock, peer, count = open_socket(own), parse(peer), int(count)
    meet(sock, peer)
    sent, received, sent_sum, received_sum, progress, is_over = 0, 0, 0, 0, time.monotonic(), False
    while sent < count or received < count:
        before = sent, received
        sock.poll(select.POLLIN, 0.01)
        while sent < count:
            data = struct.pack("!I", sent) + pattern(sent % 256, 60)
            try:
                sock.send(data, peer)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                    raise
                break
            sent, sent_sum = sent + 1, zlib.crc32(data, sent_sum)
        while True:
            try:
                data = sock.recv(4096).data
            except BlockingIOError:
                break
            is_over = is_over or data == END
            if data not in (b"", HELLO, END):
                received, received_sum = received + 1, zlib.crc32(data, received_sum)
        if before != (sent, received):
            progress = time.monotonic()
        assert time.monotonic() < progress + FAULTY_LINK_LIMIT, f"{links(sock)}\nsent {sent}, received {received}"
    while waiting(sock):
        assert time.monotonic() < progress + FAULTY_LINK_LIMIT, f"{links(sock)}\n{waiting(sock)} are not acknowledged"
        time.sleep(0.05)
    # After a lost connection, messages are repeated although the peer has received them, and a process that has left
    # acknowledges nothing: the peer stays until this message.
    sock.send_soon(END, peer)
    limit = time.monotonic() + FAULTY_LINK_LIMIT
    while not is_over:
        got = sock.recv_soon(4096, seconds=limit - time.monotonic())
        is_over = got.data == END
    # Closing the socket would discard the message. The peer that has received it may leave before its acknowledgement arrives.
    while waiting(sock) and time.monotonic() < limit:
        time.sleep(0.05)
    print(f"hashed sent {sent} {sent_sum} received {received} {received_sum}")


# Number of the peer's messages required.
ENOUGH = 50


def life_message(life, content, number):
    size = [0, 100, 5000, 20_000][number % 4]
    return struct.pack("!BBI", life, content, number) + pattern(number % 256, size)


def load(own, peer, life, peers):
    sock, peer, life, peers = open_socket(own), parse(peer), int(life), int(peers)
    sock.limits(send=200_000)
    limit = time.monotonic() + 240
    seen, following, is_content, number, quiet = [0] * 3, [None] * 3, [False] * 3, 0, None
    while quiet is None or time.monotonic() < quiet:
        assert time.monotonic() < limit, f"{number} sent, {seen} seen, and not enough"
        sock.poll(select.POLLIN, 0.01)
        while True:
            try:
                got = sock.recv()
            except BlockingIOError:
                break
            if got.address is None:
                continue
            of, content, count = struct.unpack_from("!BBI", got.data)
            assert got.data == life_message(of, content, count), f"{count} is not whole"
            assert following[of] in (None, count), f"{count} instead of {following[of]}"
            seen[of], following[of], is_content[of] = seen[of] + 1, count + 1, content
        if not peers and max(seen) >= ENOUGH:
            print("dies", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        content = peers > 0 and seen[peers] >= ENOUGH
        if content and is_content[peers] and quiet is None:
            quiet = time.monotonic() + 3
        try:
            sock.send(life_message(life, content, number), peer)
            number += 1
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
    print(f"lived sent {number} seen {seen[peers]} resets {afrds.counters(sock)['conn_reset']}")


def waiting(sock):
    """Number of messages of a socket not sent or not acknowledged."""
    port = struct.pack("!H", sock.address()[1])
    found = 0
    for option in (afrds.INFO_SEND, afrds.INFO_RETRANS):
        found += sum(one[20:22] == port for one in sock.elements(option))
    return found


def links(sock):
    """The host's connections and counters, and the last lines of the kernel's log."""
    each = [struct.unpack_from("=QQ24xBB", one) for one in sock.elements(afrds.INFO_CONNECTIONS)]
    counts = {name: count for name, count in afrds.counters(sock).items() if count}
    log = subprocess.run(["dmesg"], capture_output=True, text=True).stdout.splitlines()[-40:]
    return "\n".join([f"connections (next sent, next received, flags, type of service): {each}", f"{counts}", *log])


def sink(own, peer, count, first=None):
    sock, peer = open_socket(own), parse(peer)
    meet(sock, peer)
    before = afrds.counters(sock)
    if first is not None:
        sock.send_soon(request(first), peer)
        wait_for_stop(peer)
    for number in range(int(count)):
        sock.send_soon(request(SINK, 0, number), peer)
    limit = time.monotonic() + 120
    while waiting(sock):
        assert time.monotonic() < limit, f"{waiting(sock)} are not acknowledged"
        time.sleep(0.05)
    after = afrds.counters(sock)
    acks, resets = (after[name] - before[name] for name in ("ib_ack_received", "conn_reset"))
    print(f"{'sunk' if first is None else 'stalled'} {count} acks {acks} resets {resets}")


def wait_for_stop(peer):
    """Waits until a server is stopped: only then is it reachable by TCP."""
    limit = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(peer, 10).close()
        except OSError:
            assert time.monotonic() < limit, f"{peer} does not stop"
            time.sleep(0.1)


def stall(own, peer, count):
    sink(own, peer, count, STALL)


def wrong(own, peer):
    sock, peer = open_socket(own), parse(peer)
    meet(sock, peer)
    local = Memory(100)
    for seed in range(20):
        sock.send_soon(request(ECHO, seed, 4000, pattern(seed, 4000)), peer)
        if seed == 10:
            rdma = Rdma(0xDEAD00, [local], afrds.NOTIFY_ME | afrds.READWRITE, token=77)
            sock.send_soon(b"never", peer, [rdma.message])
    told, seed = [], 0
    while seed < 20 or not told:
        got = hear(sock, 60)
        if got.length:
            assert got.data == request(ECHO, seed, 4000, pattern(seed, 4000)), f"{seed} came back otherwise"
            seed += 1
        else:
            told += afrds.statuses(got.control)
    # Dropped, if the kernel notices the end of the connection before the refusal.
    assert told in ([(77, afrds.REMOTE_ERROR)], [(77, afrds.DROPPED)]), told
    print("wrong", seed)


# Memory blocks exposed during link cuts, and the number of unanswered long messages.
PLACES, PLACE_SIZE = 8, 1 << 16
LONG, AT_ONCE, LONG_ROOM = 1 << 20, 3, 8 << 20

# First bytes of messages about blocks, and of the last message.
NAMED, DROPPED, SEEN, OVER = b"MXOZ"


class Places:
    """Operations on the other side's memory, one at a time for each block."""

    def __init__(self, sock):
        self.sock, self.peer = sock, None
        self.cookies, self.seen = {}, {}
        # Operations by token; unfinished ones also by block.
        self.untold, self.open = {}, {}
        self.begun = 0
        self.ended = [0] * 5
        self.done = [0] * PLACES
        # Block of the next read, and whether reads may start.
        self.turn, self.reads = PLACES // 2, True

    def may_begin(self, place):
        """Whether an operation on the block may start: reads one at a time, see the fenced message in `DESIGN.md`."""
        return place < PLACES // 2 or self.reads and place == self.turn and not self.is_reading()

    def is_reading(self):
        return max(self.open, default=0) >= PLACES // 2

    def begin(self, place):
        self.begun += 1
        seed, kind = self.begun % 251, WRITE if place < PLACES // 2 else READ
        if kind == READ:
            self.turn = PLACES // 2 + (place + 1) % (PLACES // 2)
        local = Memory(PLACE_SIZE, 0x10, pattern(seed, PLACE_SIZE) if kind == WRITE else b"")
        flags = afrds.NOTIFY_ME | (afrds.READWRITE if kind == WRITE else afrds.FENCE)
        rdma = Rdma(self.cookies[place], [local], flags, token=self.begun)
        self.open[place] = self.untold[self.begun] = [kind, place, seed, local, None]
        self.sock.send_soon(bytes([kind, place, seed]), self.peer, [rdma.message])

    def told(self, token, status):
        # Fails on a second notification.
        operation = self.untold.pop(token)
        kind, place, seed, local, _ = operation
        self.ended[status] += 1
        operation[4] = kind
        if status == 0:
            assert kind == WRITE or local.read() == pattern(place, PLACE_SIZE), f"{place} was read wrong"
            self.done[place] += 1
        else:
            # The operation's message may have arrived nevertheless.
            operation[4] = DROPPED
            self.sock.send_soon(bytes([DROPPED, place, seed]), self.peer)

    def step(self, goes_on):
        while True:
            try:
                got = self.sock.recv()
            except BlockingIOError:
                break
            for token, status in afrds.statuses(got.control):
                self.told(token, status)
            if got.data == HELLO:
                self.sock.send_soon(HELLO, got.address)
            elif got.data[:1] == bytes([NAMED]):
                self.peer = got.address
                (self.cookies[got.data[1]],) = afrds.numbers(got.control, afrds.RDMA_DEST)
            elif got.data:
                _, place, seed, kind = got.data
                self.seen[place] = seed, kind
        for place in self.cookies:
            if place in self.open:
                _, _, seed, _, wanted = self.open[place]
                if wanted is None or self.seen.get(place) != (seed, wanted):
                    continue
                del self.open[place]
            if goes_on and self.may_begin(place):
                self.begin(place)


class Messages:
    """Long messages in both directions, each answered by its number."""

    def __init__(self, sock):
        self.sock, self.peer = sock, None
        self.sent = self.answered = self.seen = 0
        self.owed = []

    def step(self, goes_on):
        while True:
            try:
                got = self.sock.recv()
            except BlockingIOError:
                break
            if not got.data:
                continue
            self.peer = got.address
            if got.data == HELLO:
                self.owed.append(HELLO)
                continue
            (number,) = struct.unpack_from("!I", got.data)
            if len(got.data) == 4:
                assert number == self.answered, f"{number} is answered, not {self.answered}"
                self.answered += 1
            else:
                assert number == self.seen, f"{number} instead of {self.seen}"
                assert got.data[4:] == pattern(number % 256, LONG - 4), f"{number} is not whole"
                self.seen += 1
                self.owed.append(got.data[:4])
        while self.owed and self.put(self.owed[0]):
            self.owed.pop(0)
        is_due = goes_on and self.seen
        while is_due and self.sent - self.answered < AT_ONCE:
            data = struct.pack("!I", self.sent) + pattern(self.sent % 256, LONG - 4)
            if not self.put(data):
                break
            self.sent += 1

    def put(self, data):
        try:
            self.sock.send(data, self.peer)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ENOBUFS):
                raise
            return False
        return True


def unconnected(sock):
    """Types of service of former connections without a current one."""
    return {one[41] for one in sock.elements(afrds.INFO_CONNECTIONS) if not one[40] & 4}


def link_down(own, cut, restore, rounds):
    sock, long = open_socket(own), Socket((parse(own)[0], parse(own)[1] + 1))
    long.tos(1)
    long.limits(LONG_ROOM, LONG_ROOM)
    places, messages = Places(sock), Messages(long)
    limit, lost = time.monotonic() + 240, set()

    def go_on_until(is_so, goes_on=True):
        while not is_so():
            if time.monotonic() > limit:
                subprocess.run("rdma resource show qp; rdma statistic show", shell=True)
                print(afrds.state(sock))
                raise AssertionError(f"{places.ended} {places.open} {messages.sent} {messages.seen} {messages.answered}")
            places.step(goes_on)
            messages.step(goes_on)
            lost.update(unconnected(sock))
            select.select([sock, long], [], [], 0.02)

    def progress():
        done, answered, seen = list(places.done), messages.answered, messages.seen
        return lambda: (
            all(now > before for now, before in zip(places.done, done))
            and messages.answered > answered + AT_ONCE
            and messages.seen > seen + AT_ONCE
        )

    go_on_until(progress())
    lost.clear()
    cuts = 0
    # The cut may fall between two operations.
    while cuts < int(rounds) or not sum(places.ended[1:]) or lost != {0, 1}:
        cuts += 1
        # Only a read is dropped, because its message waits for it. The next one starts behind the cut.
        places.reads = False
        go_on_until(lambda: not places.is_reading())
        running = subprocess.Popen(cut, shell=True)
        go_on_until(lambda: running.poll() is not None)
        assert running.returncode == 0, cut
        places.reads = True
        # A cut is detected only by a loss.
        places.sock.send_soon(HELLO, places.peer)
        messages.sock.send_soon(HELLO, messages.peer)
        patience = time.monotonic() + 10
        go_on_until(lambda: lost == {0, 1} or time.monotonic() > patience)
        subprocess.run(restore, shell=True, check=True)
        go_on_until(progress())
    go_on_until(lambda: not places.open and messages.answered == messages.sent, False)
    sock.send_soon(bytes([OVER]), places.peer)
    # No completion is reported twice.
    time.sleep(2)
    places.step(False)
    done, dropped = places.ended[0], places.ended[3] + places.ended[4]
    assert sum(places.ended) == places.begun == done + dropped, places.ended
    print(f"link_down done {done} dropped {dropped} sent {messages.sent} seen {messages.seen} cuts {cuts}", places.ended)


def slow(own, seconds):
    sock = open_socket(own)
    sock.limits(receive=20_000)
    asked = sock.recv_soon(seconds=60)
    sock.send_soon(HELLO, asked.address)
    time.sleep(float(seconds))
    seen = 0
    while True:
        got = hear(sock, 60)
        if got.data == b"over":
            break
        seen += 1
    sock.send_soon(b"%d" % seen, got.address)
    time.sleep(2)
    print("slow", seen)


def press(own, peer):
    sock, peer = open_socket(own), parse(peer)
    sock.set(afrds.CONG_MONITOR, 1)
    meet(sock, peer)
    sent = 0
    while True:
        try:
            sock.send(bytes(1000), peer)
            sent += 1
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                break
            if error.errno != errno.EAGAIN:
                raise
        time.sleep(0.02)
    told = hear(sock, 60)
    (ports,) = afrds.numbers(told.control, afrds.CONG_UPDATE)
    assert (told.length, ports) == (0, 1 << peer[1] % 64), told
    print("refused after", sent)
    sock.send_soon(b"over", peer)
    assert hear(sock, 60).data == b"%d" % sent


def refused(number, call, *arguments):
    """Checks that the call fails with this error number."""
    try:
        result = call(*arguments)
    except OSError as error:
        wanted, got = errno.errorcode[number], errno.errorcode.get(error.errno, error.errno)
        assert error.errno == number, f"{call.__name__}{arguments}: {got}, not {wanted}"
    else:
        raise AssertionError(f"{call.__name__}{arguments} gave {result}, not {errno.errorcode[number]}")


def calls(ip):
    """Checks the calls without a peer in the table of the specification's section 3."""
    refused(errno.ESOCKTNOSUPPORT, Socket, None, afrds.AF_RDS, socket.SOCK_DGRAM)
    sock, other = Socket(), Socket()
    for bad in ("0.0.0.0", "255.255.255.255", "224.0.0.1"):
        refused(errno.EINVAL, sock.bind, (bad, 4900))
    refused(errno.EADDRNOTAVAIL, sock.bind, ("10.77.0.1", 4900))
    refused(errno.EINVAL, sock.bind, (ip, 1))
    assert sock.name()[:2] == b"\0\0" and len(sock.name()) == 16
    refused(errno.ENOTCONN, sock.name, True)
    refused(errno.ENOTCONN, sock.send, b"x", (ip, 4901))
    refused(errno.ENOTTY, sock.tos, 3)
    refused(errno.ENOTCONN, sock.cancel, (ip, 4901))
    assert struct.unpack("=i", sock.get(afrds.TRANSPORT)) == (-1,)
    for transport, number in ((3, errno.EINVAL), (-1, errno.EINVAL), (1, errno.ENOPROTOOPT)):
        refused(number, sock.set, afrds.TRANSPORT, transport)
    sock.bind((ip, 4900))
    refused(errno.EINVAL, sock.bind, (ip, 4902))
    refused(errno.EADDRINUSE, other.bind, (ip, 4900))
    refused(errno.EOPNOTSUPP, sock.set, afrds.TRANSPORT, 0)
    assert struct.unpack("=i", sock.get(afrds.TRANSPORT)) == (0,)
    assert sock.address() == (ip, 4900)
    refused(errno.ENOTCONN, sock.send, b"x")
    for flag in (socket.MSG_OOB, socket.MSG_NOSIGNAL, socket.MSG_MORE, socket.MSG_EOR, socket.MSG_CONFIRM):
        refused(errno.EOPNOTSUPP, sock.send, b"x", ("10.9.0.99", 4901), (), flag)
    refused(errno.EDESTADDRREQ, sock.connect, ("0.0.0.0", 4901))
    for bad in ("255.255.255.255", "224.0.0.1"):
        refused(errno.EINVAL, sock.connect, (bad, 4901))
    sock.connect((ip, 4905))
    assert afrds.address_of(sock.name(True)) == (ip, 4905)
    refused(errno.EMSGSIZE, sock.send, bytes((1 << 20) + 1), (ip, 4901))
    sock.limits(1000, 1000)
    refused(errno.EMSGSIZE, sock.send, bytes(10_000), (ip, 4901))
    refused(errno.EINVAL, sock.send, b"x", (ip, 4901), [(10, bytes(8))])
    refused(errno.EINVAL, sock.set, afrds.CANCEL_SENT_TO, bytes(8))
    refused(errno.EINVAL, sock.free_mr, 0x1234)
    refused(errno.ENOPROTOOPT, sock.set, afrds.BARRIER, bytes(24))
    refused(errno.EFAULT, sock.set, afrds.RXPATH_LATENCY, bytes([4, 0, 1, 2]))
    refused(errno.EFAULT, sock.set, afrds.RXPATH_LATENCY, bytes([1, 3, 0, 0]))
    sock.tos(3)
    assert sock.tos() == 3
    refused(errno.EINVAL, sock.tos, 4)
    refused(errno.EAGAIN, sock.recv)
    sock.timeouts(receive=0.2)
    refused(errno.ETIMEDOUT, sock.recv, 10, 0)
    # Messages to the local host.
    far = Socket((ip, 0))
    port = far.address()[1]
    assert port >= 2
    far.send(pattern(1, 500), (ip, 4900))
    got = sock.recv_soon(100, flags=socket.MSG_PEEK | socket.MSG_TRUNC)
    assert (got.length, got.data, got.address) == (500, pattern(1, 500)[:100], (ip, port)), got
    got = sock.recv_soon(100)
    assert (got.length, got.flags & socket.MSG_TRUNC) == (100, socket.MSG_TRUNC), got
    refused(errno.EAGAIN, sock.recv)
    sock.set(afrds.RXPATH_LATENCY, bytes([3, 2, 0, 1]))
    sock.set(SO_TIMESTAMP, 1, socket.SOL_SOCKET)
    far.send(b"when", (ip, 4900))
    got = sock.recv_soon()
    (times,) = [payload for kind, *payload in got.control if kind == afrds.LATENCY]
    assert len(times[0]) == 32 and times[0][:4] == bytes([3, 2, 0, 1]), got
    stamps = [one[2] for one in got.control if one[:2] == (socket.SOL_SOCKET, SO_TIMESTAMP)]
    seconds, micros = struct.unpack("=qq", stamps[0])
    assert abs(seconds + micros / 1e6 - time.time()) < 60, got
    sock.set(SO_TIMESTAMP, 0, socket.SOL_SOCKET)
    sock.set(afrds.RXPATH_LATENCY, bytes(4))
    far.send(b"whenever", (ip, 4900))
    assert sock.recv_soon().control == []
    ports = {Socket((ip, 0)).address()[1] for _ in range(100)}
    assert len(ports) == 100 and min(ports) >= 2
    print("calls are as they should be")


def forked(role, *arguments):
    """Runs a function in a child process, and returns a function to check the result."""
    own = os.fork()
    if own == 0:
        try:
            role(*arguments)
        except BaseException as error:
            print("in a child:", repr(error), flush=True)
            os._exit(1)
        os._exit(0)

    def ended():
        _, status = os.waitpid(own, 0)
        assert status == 0, status

    return ended


def try_out(own):
    """Checks for RDS support, as programs do before forking."""
    with Socket(parse(own)) as sock:
        sock.free_mr(0)


def talk_to_oneself(own):
    with Socket(parse(own)) as sock:
        sock.send(b"hello", parse(own))
        assert sock.recv_soon().data == b"hello"


def child(own):
    try_out(own)
    forked(talk_to_oneself, own)()

    is_taken, takes = os.pipe()
    is_over, ends = os.pipe()

    def wait(own):
        os.close(ends)
        with Socket(parse(own)):
            # Long enough for the address to be claimed, although unused.
            time.sleep(1)
            os.write(takes, b"!")
            # Blocks until the parent closes the other end.
            os.read(is_over, 1)

    def come_later(own):
        with Socket(parse(own)) as sock:
            refused(errno.EADDRINUSE, sock.recv)

    # The address is claimed before its first use.
    has_waited = forked(wait, own)
    os.close(takes)
    os.read(is_taken, 1)
    forked(come_later, own)()
    os.close(ends)
    has_waited()
    # This process claims the address as well; afterwards children cannot bind.
    talk_to_oneself(own)
    forked(refused, errno.EOPNOTSUPP, Socket)()
    print("children have what their parent has not used")


def info(own):
    sock = open_socket(own)
    sock.connect(("10.9.0.99", 4999))
    sock.send(pattern(1, 5000))
    sock.send(pattern(2, 300), parse(own))
    limit = time.monotonic() + 20
    while not sock.info(afrds.INFO_RECV)[1] and time.monotonic() < limit:
        time.sleep(0.1)
    for option in (*range(10000, 10007), afrds.INFO_IB, *range(10011, 10016), afrds.INFO6_IB):
        try:
            size, raw = sock.info(option)
        except OSError as error:
            print("info", option, errno.errorcode[error.errno])
        else:
            print("info", option, size, raw.hex() or "-")


if __name__ == "__main__":
    roles = [serve, sizes, rdma, stop, ping, pinged, services, stale, flow, hashes, load, sink, stall, wrong]
    roles += [link_down, slow, press, calls, child, info]
    roles = {role.__name__: role for role in roles}
    if len(sys.argv) < 2 or sys.argv[1] not in roles:
        sys.exit(__doc__)
    roles[sys.argv[1]](*sys.argv[2:])
