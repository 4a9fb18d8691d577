/* Sends bytes and returns from `main` without closing the socket. The arguments are the address and the port of a
   server that reads to the end. */

#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>

#include HEADER

enum { SIZE = 3000000 };

static unsigned char bytes[SIZE];

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (argc != 3 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1)
        return 2;
    address.sin_port = htons(atoi(argv[2]));
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    if (rconnect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        return 3;
    for (size_t sent = 0; sent < SIZE;) {
        ssize_t more = rsend(fd, bytes + sent, SIZE - sent, 0);
        if (more <= 0)
            return 4;
        sent += more;
    }
    return 0;
}
