/* Echoes all received bytes, with a child process for each peer. */

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void check(int condition, const char *what) {
    if (!condition) {
        perror(what);
        exit(1);
    }
}

static void serve(int peer) {
    char bytes[4000];
    ssize_t got;
    while ((got = read(peer, bytes, sizeof bytes)) > 0) {
        if (got >= 4 && bytes[got - 4] == 's' && bytes[got - 1] == 'p')
            break;
        for (ssize_t sent = 0; sent < got;) {
            ssize_t more = write(peer, bytes + sent, got - sent);
            check(more > 0, "write");
            sent += more;
        }
    }
    close(peer);
    exit(0);
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(argc == 2 && inet_pton(AF_INET, argv[1], &address.sin_addr) == 1, "arguments");
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    check(listen(listener, 8) == 0, "listen");
    check(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "name");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int peer = accept(listener, NULL, NULL);
        check(peer >= 0, "accept");
        if (fork() == 0)
            serve(peer);
        close(peer);
    }
}
