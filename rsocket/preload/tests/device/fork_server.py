"""Echoes all received bytes, with a child process for each peer."""

import socket
import socketserver
import sys


# Options of a connection, the same before and after its move.
OPTIONS = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 100,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 20,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 4,
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): 90000,
}


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(100000):
            for option, value in OPTIONS.items():
                assert self.request.getsockopt(*option) == value, option
            if data.endswith(b"stop"):
                return
            self.request.sendall(data)


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True

    def get_request(self):
        request, peer = super().get_request()
        for option, value in OPTIONS.items():
            request.setsockopt(*option, value)
        return request, peer


with Server((sys.argv[1], 0), Echo) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
