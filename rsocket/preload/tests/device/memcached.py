"""Four threads that set and get values of a memcached at the address and port of the arguments."""

import socket
import sys
import threading

VALUES, SIZE = 20, 10000
well = []


def work(thread):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
        file = connection.makefile("rwb")
        for number in range(VALUES):
            value = bytes([65 + number]) * SIZE
            key = b"%d_%d" % (thread, number)
            file.write(b"set %s 0 0 %d\r\n%s\r\nget %s\r\n" % (key, SIZE, value, key))
            file.flush()
            assert file.readline() == b"STORED\r\n"
            assert file.readline().startswith(b"VALUE " + key)
            assert file.read(SIZE + 2) == value + b"\r\n" and file.readline() == b"END\r\n"
    well.append(thread)


threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(well) == 4, well
