"""The kernel's RDS sockets, through the system calls: all operations, without further logic.

Python's `socket` supports AF_RDS, but neither IPv6 addresses nor options above one kilobyte.
A failed call raises `OSError` with the kernel's error number.
"""

import collections
import ctypes
import ipaddress
import mmap
import os
import select
import socket
import struct
import time

AF_RDS = 21
SOL_RDS = 276

# Options.
CANCEL_SENT_TO, GET_MR, FREE_MR, BARRIER, RECVERR, CONG_MONITOR, GET_MR_FOR_DEST, TRANSPORT = range(1, 9)
RXPATH_LATENCY = 10
SET_TOS, GET_TOS = 0x89E0, 0x89E1
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000

# Control messages.
RDMA_ARGS, RDMA_DEST, RDMA_MAP, RDMA_STATUS, CONG_UPDATE, FADD, CSWP, MASKED_FADD, MASKED_CSWP = range(1, 10)
LATENCY, ZCOPY_COOKIE, ZCOPY_COMPLETION = range(11, 14)

# Flags of memory and of operations.
READWRITE, FENCE, INVALIDATE, USE_ONCE, DONTWAIT, NOTIFY_ME, SILENT, REMOTE_COMPLETE = (1 << bit for bit in range(8))

# Statuses of operations.
SUCCESS, REMOTE_ERROR, CANCELED, DROPPED, OTHER_ERROR = range(5)

# Tables of information.
INFO_COUNTERS, INFO_CONNECTIONS = 10000, 10001
INFO_SEND, INFO_RETRANS, INFO_RECV, INFO_SOCKETS = 10003, 10004, 10005, 10006
INFO_IB, INFO6_CONNECTIONS, INFO6_IB = 10008, 10011, 10017
INFO6_SEND, INFO6_RETRANS, INFO6_RECV, INFO6_SOCKETS = 10012, 10013, 10014, 10015

libc = ctypes.CDLL(None, use_errno=True)


class Header(ctypes.Structure):
    """`struct msghdr` with a single `struct iovec`."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_len", ctypes.c_uint32),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_len", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class Piece(ctypes.Structure):
    _fields_ = [("addr", ctypes.c_void_p), ("len", ctypes.c_size_t)]


Received = collections.namedtuple("Received", "data address control flags length")


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def sockaddr(address):
    """Encodes a `struct sockaddr`; `address` is (ip, port), or raw bytes."""
    if isinstance(address, bytes):
        return address
    ip, port = address
    ip, _, scope = ip.partition("%")
    ip = ipaddress.ip_address(ip)
    if ip.version == 4:
        return struct.pack("=H2s4s8x", socket.AF_INET, port.to_bytes(2, "big"), ip.packed)
    scope = socket.if_nametoindex(scope) if scope else 0
    return struct.pack("=H2sI16sI", socket.AF_INET6, port.to_bytes(2, "big"), 0, ip.packed, scope)


def address_of(raw):
    """Decodes a `struct sockaddr`; `None` if empty."""
    if len(raw) < 2:
        return None
    (family,) = struct.unpack_from("=H", raw)
    if family == socket.AF_INET:
        return str(ipaddress.ip_address(raw[4:8])), int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET6:
        return str(ipaddress.ip_address(raw[8:24])), int.from_bytes(raw[2:4], "big")
    return None


def parse(text):
    """Parses `IP:PORT`, split at the last colon."""
    ip, _, port = text.rpartition(":")
    return ip.strip("[]"), int(port)


def control_bytes(messages):
    """Encodes control messages; each is (type, payload) or (level, type, payload)."""
    raw = b""
    for message in messages:
        level, kind, payload = message if len(message) == 3 else (SOL_RDS, *message)
        raw += struct.pack("=Qii", 16 + len(payload), level, kind) + payload
        raw += bytes(-len(raw) % 8)
    return raw


def control_messages(raw):
    """Decodes control messages: (type, payload) for RDS, (level, type, payload) for others."""
    found = []
    while len(raw) >= 16:
        length, level, kind = struct.unpack_from("=Qii", raw)
        if length < 16:
            break
        payload = raw[16:length]
        found.append((kind, payload) if level == SOL_RDS else (level, kind, payload))
        raw = raw[length + -length % 8 :]
    return found


class Socket:
    """An RDS socket."""

    def __init__(self, bind=None, family=AF_RDS, kind=socket.SOCK_SEQPACKET, protocol=0):
        self.fd = checked(libc.socket(family, kind, protocol))
        if bind is not None:
            self.bind(bind)

    def close(self):
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def fileno(self):
        return self.fd

    def bind(self, address):
        raw = sockaddr(address)
        checked(libc.bind(self.fd, raw, len(raw)))

    def connect(self, address):
        raw = sockaddr(address)
        checked(libc.connect(self.fd, raw, len(raw)))

    def name(self, peer=False):
        """The raw address of the socket, or of its default destination."""
        raw, length = ctypes.create_string_buffer(128), ctypes.c_uint32(128)
        call = libc.getpeername if peer else libc.getsockname
        checked(call(self.fd, raw, ctypes.byref(length)))
        return raw.raw[: length.value]

    def address(self):
        return address_of(self.name())

    def send(self, data, to=None, control=(), flags=socket.MSG_DONTWAIT):
        """Sends a message; `control` has the format of `control_bytes`."""
        name = sockaddr(to) if to is not None else b""
        control = control_bytes(control)
        piece = Piece(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data))
        header = Header(
            ctypes.cast(ctypes.c_char_p(name), ctypes.c_void_p) if name else None,
            len(name),
            ctypes.addressof(piece),
            1,
            ctypes.cast(ctypes.c_char_p(control), ctypes.c_void_p) if control else None,
            len(control),
            0,
        )
        return checked(libc.sendmsg(self.fd, ctypes.byref(header), flags))

    def send_soon(self, data, to=None, control=(), seconds=30):
        """Sends, and retries until the timeout without room in the buffer or without a connection."""
        limit = time.monotonic() + seconds
        while True:
            try:
                return self.send(data, to, control)
            except OSError as error:
                if error.errno not in (11, 105) or time.monotonic() > limit:
                    raise
            select.select([], [], [], 0.02)

    def recv(self, size=1 << 20, flags=socket.MSG_DONTWAIT, control_size=1024):
        """Receives the next message or notification."""
        data, name = ctypes.create_string_buffer(max(size, 1)), ctypes.create_string_buffer(128)
        control = ctypes.create_string_buffer(max(control_size, 1))
        piece = Piece(ctypes.addressof(data), size)
        header = Header(
            ctypes.addressof(name), 128, ctypes.addressof(piece), 1, ctypes.addressof(control), control_size, 0
        )
        length = checked(libc.recvmsg(self.fd, ctypes.byref(header), flags))
        return Received(
            ctypes.string_at(data, min(length, size)),
            address_of(name.raw[: header.name_len]),
            control_messages(control.raw[: header.control_len]),
            header.flags,
            length,
        )

    def recv_soon(self, size=1 << 20, seconds=30, **more):
        """Receives, with a timeout."""
        limit = time.monotonic() + seconds
        while True:
            if self.poll(select.POLLIN, limit - time.monotonic()) & select.POLLIN:
                try:
                    return self.recv(size, **more)
                except BlockingIOError:
                    # A congestion map update, notified once.
                    pass
            elif time.monotonic() > limit:
                raise TimeoutError(f"nothing has come for {seconds} s; {state(self)}")

    def poll(self, mask, seconds):
        poll = select.poll()
        poll.register(self.fd, mask)
        events = poll.poll(max(0, seconds) * 1000)
        return events[0][1] if events else 0

    def set(self, option, value, level=SOL_RDS):
        raw = value if isinstance(value, bytes) else struct.pack("=i", value)
        checked(libc.setsockopt(self.fd, level, option, raw, len(raw)))

    def get(self, option, size=4, level=SOL_RDS):
        raw, length = ctypes.create_string_buffer(max(size, 1)), ctypes.c_uint32(size)
        checked(libc.getsockopt(self.fd, level, option, raw, ctypes.byref(length)))
        return raw.raw[: length.value]

    def info(self, option):
        """A table of the whole host: the size of an element, and the bytes of all."""
        length = ctypes.c_uint32(0)
        while True:
            raw = ctypes.create_string_buffer(length.value + 1)
            size = libc.getsockopt(self.fd, SOL_RDS, option, raw, ctypes.byref(length))
            if size >= 0:
                return size, raw.raw[: length.value]
            if ctypes.get_errno() != 28:
                checked(size)

    def elements(self, option):
        """The elements of a table of the whole host."""
        size, raw = self.info(option)
        return [raw[at : at + size] for at in range(0, len(raw), size)]

    def tos(self, value=None):
        """Sets or gets the type of service."""
        byte = ctypes.c_uint8(0 if value is None else value)
        checked(libc.ioctl(self.fd, ctypes.c_ulong(GET_TOS if value is None else SET_TOS), ctypes.byref(byte)))
        return byte.value

    def limits(self, send=None, receive=None):
        """Sets the send and receive buffer sizes in bytes, above the system's limits."""
        if send is not None:
            self.set(SO_SNDBUFFORCE, send, socket.SOL_SOCKET)
        if receive is not None:
            self.set(SO_RCVBUFFORCE, receive, socket.SOL_SOCKET)

    def timeouts(self, send=None, receive=None):
        for option, seconds in ((socket.SO_SNDTIMEO, send), (socket.SO_RCVTIMEO, receive)):
            if seconds is not None:
                raw = struct.pack("=qq", int(seconds), int(seconds % 1 * 1_000_000))
                self.set(option, raw, socket.SOL_SOCKET)

    def cancel(self, to):
        self.set(CANCEL_SENT_TO, sockaddr(to))

    def get_mr(self, memory, flags=0):
        cookie = ctypes.c_uint64()
        self.set(GET_MR, struct.pack("=4Q", memory.addr, memory.size, ctypes.addressof(cookie), flags))
        return cookie.value

    def free_mr(self, cookie, flags=0):
        self.set(FREE_MR, struct.pack("=2Q", cookie, flags))


class Memory:
    """Memory for a device: `size` bytes at `offset` within a page."""

    def __init__(self, size, offset=0, data=b""):
        self.size = size
        self.offset = offset
        self.map = mmap.mmap(-1, (offset + size + 4095) // 4096 * 4096)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.addr = self.base + offset
        self.write(data)

    def write(self, data):
        ctypes.memmove(self.addr, data, len(data))

    def read(self):
        return ctypes.string_at(self.addr, self.size)

    def around(self):
        """Bytes on the same pages outside of the memory."""
        whole = ctypes.string_at(self.base, len(self.map))
        return whole[: self.offset] + whole[self.offset + self.size :]


def rdma_map(memory, flags=0):
    """Registers memory for the receiver of the message."""
    cookie = ctypes.c_uint64()
    message = (RDMA_MAP, struct.pack("=4Q", memory.addr, memory.size, ctypes.addressof(cookie), flags))
    return message, cookie


def rdma_dest(cookie):
    return RDMA_DEST, struct.pack("=Q", cookie)


class Rdma:
    """An operation on the peer's memory; must stay alive until the call returns."""

    def __init__(self, cookie, pieces, flags, token=0, addr=0, size=None):
        raw = b"".join(struct.pack("=2Q", piece.addr, piece.size) for piece in pieces)
        self.list = ctypes.create_string_buffer(raw, max(len(raw), 1))
        size = sum(piece.size for piece in pieces) if size is None else size
        where = ctypes.addressof(self.list)
        self.message = RDMA_ARGS, struct.pack("=7Q", cookie, addr, size, where, len(pieces), flags, token)


def atomic(kind, cookie, local, operands, flags=0, token=0, addr=0):
    """An atomic operation on the peer's memory; the old value is written to `local`."""
    operands = (*operands, 0, 0, 0, 0)[:4]
    return kind, struct.pack("=9Q", cookie, local.addr, addr, *operands, flags, token)


def statuses(control):
    """Completions of operations: (token, status)."""
    return [struct.unpack_from("=Qi", payload) for kind, payload in control if kind == RDMA_STATUS]


def completion(sock):
    """Waits for the completion of the only operation: (token, status), and the messages received before it."""
    early = []
    while True:
        got = sock.recv_soon()
        if told := statuses(got.control):
            assert len(told) == 1 and not got.length, got
            return told[0], early
        early.append(got)


def numbers(control, kind):
    """The 8 bytes of each control message of one type."""
    return [struct.unpack("=Q", payload)[0] for found, payload in control if found == kind]


def pattern(seed, size):
    """Bytes different from every other message at the same offset."""
    block = bytes((seed + 31 * i) & 255 for i in range(251))
    return (block * (size // 251 + 1))[:size]


def counters(sock):
    told = sock.elements(INFO_COUNTERS)
    return {one[:32].rstrip(b"\0").decode(): struct.unpack_from("=Q", one, 32)[0] for one in told}


def state(sock):
    """The host's tables of connections and messages in flight, for diagnosing a hang."""
    def each(option, layout):
        return [struct.unpack_from(layout, one) for one in sock.elements(option)]

    return " ".join(
        (
            f"connections (next sent, next received, flags, type of service): {each(INFO_CONNECTIONS, '=QQ24xBB')}",
            f"waiting (sequence number, bytes, flags): {each(INFO_SEND, '=QI12xB')}",
            f"unacknowledged: {each(INFO_RETRANS, '=QI12xB')}",
            f"received, not taken: {each(INFO_RECV, '=QI12xB')}",
            f"counters: { {name: count for name, count in counters(sock).items() if count} }",
        )
    )
