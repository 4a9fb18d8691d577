"""What `rds-stress` does, on the kernel's sockets.

passive RUNS                 serves RUNS runs in turn
active OWN PEER [NAME=N..]   one run with options; OWN and PEER are addresses. The run ends once each task has
                             sent `least` requests to each other, and `seconds` have elapsed

Every message must be the next in the sender's sequence, and every byte must be correct.
"""

import collections
import errno
import os
import select
import socket
import struct
import sys
import time

import afrds
from afrds import Memory, Rdma, Socket

PORT = 4000

# Options of the active side: numbers, flags of a byte each, and more numbers.
WIRE = struct.Struct("!4I4s4sHHI15B3I")

# With a type of service: the version in front, and the type and one more byte at the end.
VERSION = b"2.0.7".ljust(16, b"\0")
NAMES = (
    "depth request ack rdma send receive port tasks seconds "
    "summary rtprio trace verify params perfdata monitor use_once get_mr fence cache keyometer quiet simplex mode "
    "vector alignment retries tos"
).split()
Options = collections.namedtuple("Options", NAMES)
USUAL = dict.fromkeys(NAMES, 0) | dict(
    depth=1, request=1024, ack=1024, port=PORT, tasks=1, seconds=3, monitor=1, fence=1, vector=1
)

# Header of a message.
HEAD = struct.Struct("!I4s4sHHHBB4Q2I3B")
Head = collections.namedtuple("Head", "seq sender to sender_port port index op rdma addr offset pattern key size vector")
REQUEST, ACK = 1, 2
READ, WRITE = 1, 2

# Number of messages before the first with an operation.
PLAIN = 10


def pattern(size):
    """Payload of messages after the header."""
    value, found = 11, bytearray()
    for i in range(1, size + 1):
        found.append(value & 255)
        value = (41 * (value + 3) + (i >> 8)) & 0xFFFFFFFF
    return bytes(found)


class Slot:
    """Slot for one request in each direction."""

    def __init__(self, options):
        size = options.rdma * options.vector
        self.ack = None
        self.remote = Memory(size, options.alignment) if size else None
        self.local = Memory(size) if size else None
        self.cookie = None
        self.busy = None


class Peer:
    """A task of the other side."""

    def __init__(self, address, number, options):
        self.address = address
        self.slots = [Slot(options) for _ in range(options.depth)]
        self.sent = self.seen = self.next_sent = self.next_seen = self.pending = self.owed = self.asked = 0
        self.congested = False
        self.next = READ if number % 2 else WRITE


class Task:
    def __init__(self, number, own, options, is_active):
        self.own = (own, options.port + 1 + number)
        self.options = options
        self.asks = is_active or not options.simplex
        peer = socket.inet_ntoa(options.send if is_active else options.receive)
        self.peers = [Peer((peer, options.port + 1 + i), i, options) for i in range(options.tasks)]
        self.sock = Socket(self.own)
        if options.tos:
            self.sock.tos(options.tos)
        room = options.tasks * options.depth * 2 * (options.request + options.ack)
        self.sock.limits(room, room)
        if options.monitor:
            self.sock.set(afrds.CONG_MONITOR, 1)
        self.rest = pattern(max(options.request, options.ack) - HEAD.size)
        self.count = collections.Counter()

    def put(self, peer, head, size, control=()):
        """Sends; `False` if the send must be postponed."""
        rest = self.rest if self.options.verify else bytes(len(self.rest))
        data = HEAD.pack(*head, 0, 0, 0) + rest[: size - HEAD.size]
        try:
            self.sock.send(data, peer.address, control)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                peer.congested = True
            elif error.errno != errno.EAGAIN:
                raise
            return False
        peer.sent = (peer.sent + 1) & 0xFFFFFFFF
        return True

    def head(self, peer, index, op, *rdma):
        ends = socket.inet_aton(self.own[0]), socket.inet_aton(peer.address[0]), self.own[1], peer.address[1]
        return Head(peer.sent, *ends, index, op, *(rdma or (0,) * 7))

    def ask(self, number, peer):
        options, slot, control, rdma, cookie = self.options, peer.slots[peer.next_sent], [], (), None
        if slot.remote and peer.sent > PLAIN:
            following = {0: READ + WRITE - peer.next, 1: READ, 2: WRITE}[options.mode]
            value = peer.sent << 32 | os.getpid()
            if options.verify:
                fill(slot.remote, options, value if following == READ else 0)
            mapped, cookie = afrds.rdma_map(slot.remote, afrds.READWRITE | afrds.USE_ONCE * options.use_once)
            control.append(mapped)
            rdma = following, 0, 0, value, 0, options.rdma, options.vector
        head = self.head(peer, peer.next_sent, REQUEST, *rdma)
        if not self.put(peer, head, options.request, control):
            return False
        if rdma:
            peer.next, slot.cookie = rdma[0], cookie.value
        peer.next_sent = (peer.next_sent + 1) % options.depth
        peer.pending += 1
        peer.asked += 1
        self.count["asked"] += 1
        return True

    def answer(self, number, peer):
        options = self.options
        index = (peer.next_seen - peer.owed) % options.depth
        slot, control = peer.slots[index], []
        asked = slot.ack
        if asked.rdma and slot.busy:
            return False
        rdma = asked[7:] if asked.rdma else ()
        if rdma:
            if options.verify and asked.rdma == WRITE:
                fill(slot.local, options, asked.pattern)
            pieces = [Piece(slot.local, i * options.rdma, options.rdma) for i in range(options.vector)]
            flags = afrds.NOTIFY_ME | (afrds.READWRITE if asked.rdma == WRITE else afrds.FENCE * options.fence)
            token = number * options.depth + index
            operation = Rdma(asked.key, pieces, flags, token, asked.offset)
            control.append(operation.message)
        if not self.put(peer, self.head(peer, index, ACK, *rdma), options.ack, control):
            return False
        if rdma:
            slot.busy = asked
        peer.owed -= 1
        self.count["answers"] += 1
        return True

    def take(self, got):
        options = self.options
        for token, status in afrds.statuses(got.control):
            slot = self.peers[token // options.depth].slots[token % options.depth]
            asked, slot.busy = slot.busy, None
            assert status == 0, f"an operation ended with {status}"
            if options.verify and asked.rdma == READ:
                compare(slot.local, options, asked.pattern)
            self.count["read" if asked.rdma == READ else "written"] += 1
        for ports in afrds.numbers(got.control, afrds.CONG_UPDATE):
            for peer in self.peers:
                peer.congested &= not ports >> peer.address[1] % 64 & 1
        if got.address is None:
            return
        (peer,) = (peer for peer in self.peers if peer.address == got.address)
        head = Head(*HEAD.unpack_from(got.data)[:-3])
        size, index = options.request, peer.next_seen
        if head.op == ACK:
            size, index = options.ack, (peer.next_sent - peer.pending) % options.depth
        wanted = self.head(peer, index, head.op)._replace(
            seq=peer.seen,
            sender=socket.inet_aton(peer.address[0]),
            to=socket.inet_aton(self.own[0]),
            sender_port=peer.address[1],
            port=self.own[1],
        )
        assert head[:7] == wanted[:7], f"{head[:7]}, not {wanted[:7]}"
        assert got.length == size, f"{got.length} bytes, not {size}"
        assert not options.verify or got.data[HEAD.size :] == self.rest[: size - HEAD.size], "wrong bytes"
        peer.seen = (peer.seen + 1) & 0xFFFFFFFF
        if head.op == REQUEST:
            cookies = afrds.numbers(got.control, afrds.RDMA_DEST)
            peer.slots[peer.next_seen].ack = head._replace(key=cookies[0] if cookies else head.key)
            peer.next_seen = (peer.next_seen + 1) % options.depth
            peer.owed += 1
            assert peer.owed <= options.depth, "more requests than were agreed on"
            self.count["seen"] += 1
        else:
            assert peer.pending > 0, "an answer without a request"
            peer.pending -= 1
            self.answered(peer.slots[index], head)

    def answered(self, slot, head):
        """Handles the end of the other side's operation."""
        self.count["answered"] += 1
        if head.rdma:
            if not self.options.use_once:
                self.sock.free_mr(slot.cookie)
            if self.options.verify and head.rdma == WRITE:
                compare(slot.remote, self.options, head.pattern)

    def step(self, may_ask):
        """Sends and receives all pending messages."""
        while True:
            try:
                self.take(self.sock.recv())
            except BlockingIOError:
                break
        for number, peer in enumerate(self.peers):
            while peer.owed and not peer.congested and self.answer(number, peer):
                pass
            is_due = may_ask and self.asks
            while is_due and not peer.congested and peer.pending < self.options.depth and self.ask(number, peer):
                pass


class Piece:
    """A slice of memory."""

    def __init__(self, memory, at, size):
        self.addr, self.size = memory.addr + at, size


def fill(memory, options, value):
    memory.write(struct.pack("=Q", value) * (options.rdma // 8))


def compare(memory, options, value):
    size = options.rdma // 8 * 8
    assert memory.read()[:size] == struct.pack("=Q", value) * (options.rdma // 8), "memory has something else"


def carried(sock):
    """Number of messages on the connections of each type of service, in both directions."""
    found = collections.Counter()
    for one in sock.elements(afrds.INFO_CONNECTIONS):
        found[one[-1]] += sum(struct.unpack_from("=QQ", one))
    return found


def run(control, options, own, is_active, least=0):
    """Synchronizes both sides after creating the sockets, before the first message."""
    tasks = [Task(number, own, options, is_active) for number in range(options.tasks)]
    if is_active:
        control.sendall(b"\0")
        assert control.recv(1), "the other side has ended"
    else:
        assert control.recv(1), "the other side has ended"
        control.sendall(b"\0")
    time.sleep(2)
    poll = select.poll()
    for task in tasks:
        poll.register(task.sock, select.POLLIN)
    poll.register(control, select.POLLIN)
    before, carried_before = afrds.counters(tasks[0].sock), carried(tasks[0].sock)
    end = time.monotonic() + options.seconds if is_active else None
    limit = time.monotonic() + 150
    over = False
    while not over:
        assert time.monotonic() < limit, "it does not end"
        peers = [peer for task in tasks for peer in task.peers]
        is_due = end is not None and time.monotonic() >= end
        may_ask = not is_due or any(peer.asked < least for peer in peers)
        for task in tasks:
            task.step(may_ask)
        ready = [fd for fd, _ in poll.poll(100)]
        if control.fileno() in ready:
            assert not is_active, "the other side has ended"
            over = True
        elif not may_ask:
            # Every request has been answered at the end.
            over = all(not peer.pending and not peer.owed for peer in peers)
        for peer in peers:
            peer.congested = False
    control.close()
    count = sum((task.count for task in tasks), collections.Counter())
    # Acknowledgements of the other side that are not piggybacked.
    count["acks"] = afrds.counters(tasks[0].sock)["ib_ack_received"] - before["ib_ack_received"]
    ((count["tos"], _),) = (carried(tasks[0].sock) - carried_before).most_common(1)
    for task in tasks:
        task.sock.close()
    names = "asked", "answered", "seen", "answers", "read", "written", "acks", "tos"
    print("stress", *(f"{name} {count[name]}" for name in names), flush=True)


def passive(runs):
    for _ in range(int(runs)):
        # A client of the next run is refused until the run starts, and retries.
        with socket.create_server(("0.0.0.0", PORT)) as listener:
            control, _ = listener.accept()
        wire, tos = control.recv(len(VERSION), socket.MSG_WAITALL), 0
        if wire == VERSION:
            wire = control.recv(WIRE.size, socket.MSG_WAITALL)
            tos, _ = control.recv(2, socket.MSG_WAITALL)
        else:
            wire += control.recv(WIRE.size - len(wire), socket.MSG_WAITALL)
        run(control, Options(*WIRE.unpack(wire), tos), control.getsockname()[0], False)


def active(own, peer, *settings):
    given = {name: int(value) for name, value in (setting.split("=") for setting in settings)}
    ends = dict(send=socket.inet_aton(peer), receive=socket.inet_aton(own))
    least = given.pop("least", 0)
    options = Options(**(USUAL | given | ends))
    limit = time.monotonic() + 60
    while True:
        try:
            control = socket.create_connection((peer, PORT))
            break
        except ConnectionRefusedError:
            assert time.monotonic() < limit, "no listener"
            time.sleep(0.2)
    wire = WIRE.pack(*options[:-1])
    control.sendall(VERSION + wire + bytes([options.tos, 0]) if options.tos else wire)
    run(control, options, own, True, least)


if __name__ == "__main__":
    roles = {role.__name__: role for role in (passive, active)}
    if len(sys.argv) < 2 or sys.argv[1] not in roles:
        sys.exit(__doc__)
    roles[sys.argv[1]](*sys.argv[2:])
