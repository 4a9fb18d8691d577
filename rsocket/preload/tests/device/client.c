/* A TCP client written in C: sends pieces to an echo server, checks the echoed bytes, and stops the
   server. */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE 4000

static void check(int condition, const char *what) {
    if (!condition) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    unsigned char out[SIZE], in[SIZE];
    check(argc == 3 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1, "arguments");
    address.sin_port = htons(atoi(argv[2]));
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    check(peer >= 0, "socket");
    check(connect(peer, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < SIZE; i++)
            out[i] = (round * 7 + i) % 251;
        check(write(peer, out, SIZE) == SIZE, "write");
        for (int got = 0; got < SIZE;) {
            ssize_t more = read(peer, in + got, SIZE - got);
            check(more > 0, "read");
            got += more;
        }
        check(memcmp(in, out, SIZE) == 0, "bytes");
    }
    check(send(peer, "stop", 4, 0) == 4, "send");
    check(recv(peer, in, 1, 0) == 0, "end");
    puts("all is well");
    return close(peer);
}
