/* Nonblocking attempts to connect to a TCP listener without an rsocket, and to no listener: each part makes the same calls on a
   TCP socket and on one of the library. The first argument is a part, the second an address of this host. */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include "calls.h"

enum { TCP, LIBRARY, KINDS };

/* A nonblocking socket of the kernel's TCP, or of the library. */
static int client_of(int kind) {
    int type = SOCK_STREAM | SOCK_NONBLOCK;
    int client = kind == TCP ? syscall(SYS_socket, AF_INET, type, 0) : socket(AF_INET, type, 0);
    CHECK(client >= 0 && is_rsocket(client) == (kind == LIBRARY));
    return client;
}

/* A listener of the kernel's TCP; none listens at its address once it is closed. */
static int tcp_listener(struct sockaddr_in *name) {
    socklen_t length = sizeof *name;
    int listener = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    *name = address;
    CHECK(syscall(SYS_bind, listener, name, sizeof *name) == 0 && syscall(SYS_listen, listener, 9) == 0);
    CHECK(syscall(SYS_getsockname, listener, name, &length) == 0);
    return listener;
}

static void begin(int client, const struct sockaddr_in *to) {
    CHECK(connect(client, (const struct sockaddr *)to, sizeof *to) == -1 && errno == EINPROGRESS);
}

static int error_of(int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
    return error;
}

static int server_of(int listener) {
    int server = syscall(SYS_accept, listener, NULL, NULL);
    CHECK(server >= 0);
    return server;
}

/* The connection of a client, which is one of the kernel now. */
static void connects(int client, int listener) {
    int server = server_of(listener);
    CHECK(error_of(client) == 0 && !is_rsocket(client));
    passes(client, server);
    CHECK(fcntl(client, F_SETFL, 0) == 0);
    passes(server, client);
    CHECK(close(client) == 0 && close(server) == 0);
}

static void by_poll(void) {
    struct sockaddr_in name, bound, now;
    int listener = tcp_listener(&name);
    for (int kind = TCP; kind < KINDS; kind++) {
        socklen_t length = sizeof bound;
        int client = client_of(kind), on = 1, twin;
        bound = address;
        CHECK(bind(client, (struct sockaddr *)&bound, sizeof bound) == 0);
        CHECK(getsockname(client, (struct sockaddr *)&bound, &length) == 0);
        CHECK(setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
        begin(client, &name);
        twin = dup(client);
        struct pollfd waits[2] = {{client, POLLOUT | POLLIN, 0}, {listener, POLLIN, 0}};
        CHECK(poll(waits, 1, 20000) == 1 && waits[0].revents == POLLOUT);
        CHECK(!is_rsocket(twin) && getsockname(twin, (struct sockaddr *)&now, &length) == 0);
        CHECK(now.sin_port == bound.sin_port && now.sin_addr.s_addr == bound.sin_addr.s_addr);
        on = 0, length = sizeof on;
        CHECK(getsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, &length) == 0 && on);
        CHECK(close(twin) == 0);
        connects(client, listener);
    }
}

static void by_select(void) {
    struct sockaddr_in name;
    int listener = tcp_listener(&name);
    for (int kind = TCP; kind < KINDS; kind++) {
        int client = client_of(kind);
        struct timeval limit = {20, 0};
        fd_set reads, writes;
        begin(client, &name);
        FD_ZERO(&reads);
        FD_ZERO(&writes);
        FD_SET(client, &reads);
        FD_SET(client, &writes);
        CHECK(select(client + 1, &reads, &writes, NULL, &limit) == 1);
        CHECK(!FD_ISSET(client, &reads) && FD_ISSET(client, &writes));
        connects(client, listener);
    }
}

/* The kernel waits, without a call of the library: level-triggered and edge-triggered, for writing and for the first data. */
static void by_epoll(void) {
    struct sockaddr_in name;
    int listener = tcp_listener(&name);
    for (int kind = TCP; kind < KINDS; kind++) {
        for (int edges = 0; edges < 2; edges++) {
            int client = client_of(kind), set = epoll_create1(0);
            unsigned edge = edges ? EPOLLET : 0;
            struct epoll_event event = {.events = EPOLLOUT | edge, .data.u32 = 7}, got;
            begin(client, &name);
            CHECK(epoll_ctl(set, EPOLL_CTL_ADD, client, &event) == 0);
            CHECK(epoll_wait(set, &got, 1, 20000) == 1);
            CHECK(got.events == EPOLLOUT && got.data.u32 == 7);
            CHECK(error_of(client) == 0);
            event.events = EPOLLIN | edge, event.data.u32 = 8;
            CHECK(epoll_ctl(set, EPOLL_CTL_MOD, client, &event) == 0);
            CHECK(epoll_wait(set, &got, 1, 20) == 0);
            connects(client, listener);

            client = client_of(kind);
            begin(client, &name);
            CHECK(epoll_ctl(set, EPOLL_CTL_ADD, client, &event) == 0);
            int server = server_of(listener);
            CHECK(epoll_wait(set, &got, 1, 20) == 0);
            CHECK(write(server, "first", 5) == 5);
            CHECK(epoll_wait(set, &got, 1, 20000) == 1);
            CHECK(got.events == EPOLLIN && got.data.u32 == 8);
            char first[9];
            CHECK(recv(client, first, sizeof first, 0) == 5 && !is_rsocket(client));
            CHECK(close(server) == 0 && epoll_wait(set, &got, 1, 20000) == 1);
            CHECK(recv(client, first, sizeof first, 0) == 0);
            CHECK(close(client) == 0 && close(set) == 0);
        }
    }
}

/* Without a listener of either kind, the failure is that of TCP. */
static void refused(void) {
    struct sockaddr_in name;
    CHECK(close(tcp_listener(&name)) == 0);
    for (int kind = TCP; kind < KINDS; kind++) {
        int client = client_of(kind), other = client_of(kind), set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLOUT}, got;
        struct pollfd wait = {client, POLLOUT, 0};
        begin(client, &name);
        begin(other, &name);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, other, &event) == 0);
        CHECK(poll(&wait, 1, 20000) == 1 && wait.revents == (POLLOUT | POLLERR | POLLHUP));
        CHECK(error_of(client) == ECONNREFUSED && error_of(client) == 0);
        CHECK(epoll_wait(set, &got, 1, 20000) == 1 && (got.events & EPOLLERR));
        CHECK(send(other, "x", 1, MSG_NOSIGNAL) == -1 && errno == ECONNREFUSED);
        CHECK(close(client) == 0 && close(other) == 0 && close(set) == 0);
    }
}

/* Calls during the attempt, and a repeated `connect`. */
static void repeated(void) {
    struct sockaddr_in name;
    int listener = tcp_listener(&name);
    for (int kind = TCP; kind < KINDS; kind++) {
        int client = client_of(kind);
        begin(client, &name);
        struct pollfd wait = {client, POLLOUT, 0};
        CHECK(poll(&wait, 1, 20000) == 1);
        CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
        CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == -1 && errno == EISCONN);
        connects(client, listener);
        /* A blocking call waits for the attempt. */
        client = client_of(kind);
        begin(client, &name);
        CHECK(fcntl(client, F_SETFL, 0) == 0);
        int again = connect(client, (struct sockaddr *)&name, sizeof name);
        CHECK(again == 0 || errno == EISCONN);
        connects(client, listener);
    }
}

static int count_open(void) {
    DIR *open = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(open))
        count++;
    CHECK(closedir(open) == 0);
    return count;
}

static void *open_others(void *over) {
    while (!*(volatile int *)over) {
        int other = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY);
        CHECK(other >= 0 && lseek(other, 0, SEEK_SET) == 0);
        CHECK(syscall(SYS_close, other) == 0);
    }
    return NULL;
}

/* A socket closed during its attempt, whose number another file gets at once. */
static void closed(void) {
    struct sockaddr_in name;
    int listener = tcp_listener(&name), before = 0, after = 0, over = 0;
    pthread_t others;
    CHECK(pthread_create(&others, NULL, open_others, &over) == 0);
    for (int round = 0; round < 300; round++) {
        int client = client_of(LIBRARY);
        begin(client, &name);
        struct pollfd wait = {listener, POLLIN, 0};
        if (round % 3 == 1)
            CHECK(ppoll(&wait, 1, &(struct timespec){0, 1000L * round}, NULL) >= 0);
        if (round % 3 == 2)
            CHECK(poll(&wait, 1, 20000) == 1);
        CHECK(close(client) == 0);
        while (poll(&wait, 1, 0) == 1)
            CHECK(syscall(SYS_close, syscall(SYS_accept, listener, NULL, NULL)) == 0);
    }
    over = 1;
    CHECK(pthread_join(others, NULL) == 0);
    /* The last attempts may not have ended. */
    for (int pause = 0; pause < 200; pause++) {
        after = count_open();
        if (pause == 0)
            before = after;
        if (after <= 24)
            break;
        usleep(50000);
    }
    if (after > 24)
        fprintf(stderr, "%d descriptors are open, %d before\n", after, before);
    CHECK(after <= 24);
}

static void *poll_writable(void *fd) {
    struct pollfd wait = {*(int *)fd, POLLOUT, 0};
    CHECK(poll(&wait, 1, 20000) == 1 && wait.revents == POLLOUT);
    return NULL;
}

/* Threads that wait for the same attempt. */
static void by_threads(void) {
    struct sockaddr_in name;
    int listener = tcp_listener(&name);
    for (int round = 0; round < 50; round++) {
        int client = client_of(LIBRARY);
        pthread_t threads[3];
        begin(client, &name);
        for (int i = 0; i < 3; i++)
            CHECK(pthread_create(&threads[i], NULL, poll_writable, &client) == 0);
        for (int i = 0; i < 3; i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
        connects(client, listener);
    }
}

static const struct part parts[] = {
    {"poll", by_poll},   {"select", by_select},     {"epoll", by_epoll},   {"refused", refused},
    {"closed", closed},  {"repeated", repeated},    {"threads", by_threads},
};

int main(int argc, char **argv) {
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
