"""Echoes what comes, to each peer by a child of its own."""

import socketserver
import sys


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(100000):
            if data.endswith(b"stop"):
                return
            self.request.sendall(data)


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True


with Server((sys.argv[1], 0), Echo) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
