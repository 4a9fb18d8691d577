/* Calls that programs make on sockets, each checked against the manual. The first argument
   is a part of this program, the second an address of this host. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"

static void duplicates(void) {
    struct ends ends = connected();
    int twins[5], place = open("/dev/null", O_RDONLY);
    CHECK(is_rsocket(ends.client) && is_rsocket(ends.server));
    twins[0] = dup(ends.client);
    twins[1] = dup2(twins[0], place);
    twins[2] = dup3(ends.client, 200, O_CLOEXEC);
    twins[3] = fcntl(twins[2], F_DUPFD, 210);
    twins[4] = fcntl(ends.client, F_DUPFD_CLOEXEC, 220);
    CHECK(twins[0] > 0 && twins[1] == place && twins[2] == 200);
    CHECK(twins[3] >= 210 && twins[4] >= 220);
    CHECK(fcntl(twins[1], F_GETFD) == 0 && fcntl(twins[2], F_GETFD) == FD_CLOEXEC);
    CHECK(fcntl(twins[3], F_GETFD) == 0 && fcntl(twins[4], F_GETFD) == FD_CLOEXEC);
    CHECK(dup2(twins[1], twins[1]) == twins[1]);
    CHECK(dup3(twins[1], twins[1], 0) == -1 && errno == EINVAL);
    passes(ends.client, ends.server);
    CHECK(close(twins[0]) == 0);
    passes(twins[1], ends.server);
    CHECK(close(ends.client) == 0);
    CHECK(close(twins[2]) == 0);
    passes(twins[3], ends.server);
    passes(ends.server, twins[4]);
    /* The former descriptor of this number is closed. */
    CHECK(dup2(place, twins[3]) == twins[3]);
    CHECK(close(twins[3]) == 0 && close(place) == 0);
    passes(ends.server, twins[4]);
    CHECK(read(twins[3], NULL, 0) == -1 && errno == EBADF);
    CHECK(close(twins[4]) == 0);
    char end;
    CHECK(read(ends.server, &end, 1) == 0);
    CHECK(close(ends.server) == 0);
    CHECK(close(ends.server) == -1 && errno == EBADF);
}

static void received(int fd, const char *expected, size_t length) {
    char *in = malloc(length + 1);
    CHECK(length == 0 || recv(fd, in, length, MSG_WAITALL) == (ssize_t)length);
    CHECK(memcmp(in, expected, length) == 0);
    CHECK(recv(fd, in, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    free(in);
}

static void files(void) {
    enum { SIZE = 300000 };
    struct ends ends = connected();
    char *bytes = malloc(SIZE), name[] = "/tmp/rspreload-XXXXXX";
    int file = mkstemp(name);
    for (int i = 0; i < SIZE; i++)
        bytes[i] = i * 7 % 251;
    CHECK(write(file, bytes, SIZE) == SIZE && lseek(file, 100, SEEK_SET) == 100);
    /* From where the file is, which moves. */
    CHECK(sendfile(ends.client, file, NULL, 1000) == 1000);
    received(ends.server, bytes + 100, 1000);
    CHECK(lseek(file, 0, SEEK_CUR) == 1100);
    /* From an offset, which moves instead. */
    off_t offset = 5;
    CHECK(sendfile(ends.client, file, &offset, 100000) == 100000);
    received(ends.server, bytes + 5, 100000);
    CHECK(offset == 100005 && lseek(file, 0, SEEK_CUR) == 1100);
    /* To the end, and beyond. */
    offset = SIZE - 10;
    CHECK(sendfile(ends.client, file, &offset, 1000) == 10 && offset == SIZE);
    received(ends.server, bytes + SIZE - 10, 10);
    CHECK(sendfile(ends.client, file, &offset, 1000) == 0 && offset == SIZE);
    CHECK(sendfile(ends.client, file, NULL, 0) == 0);
    CHECK(sendfile(ends.client, -1, NULL, 10) == -1 && errno == EBADF);
    received(ends.server, "", 0);
    /* As much as there is room for, if it must not wait. Sent data leaves the library's buffer meanwhile. */
    CHECK(fcntl(ends.client, F_SETFL, O_NONBLOCK) == 0);
    CHECK(lseek(file, 0, SEEK_SET) == 0);
    ssize_t some = 0, more;
    while ((more = sendfile(ends.client, file, NULL, SIZE)) > 0) {
        some += more;
        CHECK(some < SIZE && lseek(file, 0, SEEK_CUR) == some);
    }
    CHECK(more == -1 && errno == EAGAIN && some > 0);
    CHECK(lseek(file, 0, SEEK_CUR) == some);
    received(ends.server, bytes, some);
    unlink(name);
}

/* Several buffers, flags, and unread data. */
static void messages(void) {
    struct ends ends = connected();
    char in[2][8] = {{0}}, out[] = "0123456789";
    struct iovec from[] = {{out, 3}, {out + 3, 0}, {out + 3, 7}};
    struct iovec to[] = {{in[0], 4}, {in[1], 6}};
    struct sockaddr_in name;
    struct msghdr message = {.msg_iov = from, .msg_iovlen = 3};
    int unread = -1, on = 1;
    CHECK(writev(ends.client, from, 3) == 10);
    CHECK(recv(ends.server, in, 10, MSG_PEEK | MSG_WAITALL) == 10);
    CHECK(ioctl(ends.server, FIONREAD, &unread) == 0 && unread == 10);
    CHECK(readv(ends.server, to, 2) == 10);
    CHECK(memcmp(in[0], "0123", 4) == 0 && memcmp(in[1], "456789", 6) == 0);
    CHECK(ioctl(ends.server, FIONREAD, &unread) == 0 && unread == 0);
    CHECK(sendmsg(ends.client, &message, MSG_NOSIGNAL) == 10);
    message = (struct msghdr){&name, sizeof name, to, 2, NULL, 0, 0};
    CHECK(recvmsg(ends.server, &message, MSG_WAITALL) == 10);
    /* As of TCP. */
    CHECK(message.msg_name == &name && message.msg_namelen == 0);
    /* A buffer for control messages stays empty. */
    char control[64];
    CHECK(send(ends.client, out, 10, 0) == 10);
    message = (struct msghdr){NULL, 0, to, 2, control, sizeof control, -1};
    CHECK(recvmsg(ends.server, &message, MSG_WAITALL) == 10);
    CHECK(message.msg_controllen == 0 && message.msg_flags == 0 && CMSG_FIRSTHDR(&message) == NULL);
    CHECK(ioctl(ends.server, FIONBIO, &on) == 0);
    CHECK((fcntl(ends.server, F_GETFL) & (O_NONBLOCK | O_ACCMODE)) == (O_NONBLOCK | O_RDWR));
    CHECK(recv(ends.server, in, 1, 0) == -1 && errno == EAGAIN);
    on = 0;
    CHECK(ioctl(ends.server, FIONBIO, &on) == 0 && (fcntl(ends.server, F_GETFL) & O_NONBLOCK) == 0);
    CHECK(sendto(ends.client, out, 2, 0, NULL, 0) == 2);
    CHECK(recvfrom(ends.server, in, 2, MSG_WAITALL, NULL, NULL) == 2);
    /* Other queues than that of the data are empty. */
    CHECK(send(ends.client, out, 2, 0) == 2 && recv(ends.server, in, 2, MSG_PEEK | MSG_WAITALL) > 0);
    message = (struct msghdr){NULL, 0, to, 2, control, sizeof control, 0};
    CHECK(recvmsg(ends.server, &message, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
    CHECK(recv(ends.server, in, 1, MSG_OOB) == -1 && errno == EINVAL);
    CHECK(recv(ends.server, in, 2, MSG_WAITALL) == 2);
    CHECK(recvmsg(ends.server, &message, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
    CHECK(shutdown(ends.client, SHUT_WR) == 0);
    CHECK(recv(ends.server, in, 1, 0) == 0);
    CHECK(send(ends.client, out, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
}

/* Requests about the network have the answers of a kernel socket, and FIONREAD is the length of the next datagram. */
static void requests(void) {
    struct ends ends = connected();
    int kinds[] = {SOCK_STREAM, SOCK_DGRAM}, unread = -1;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct ifreq ours = {.ifr_name = "lo"}, kernel = {.ifr_name = "lo"};
        int fd = socket(AF_INET, kinds[i], 0), plain = syscall(SYS_socket, AF_INET, kinds[i], 0);
        CHECK(fd >= 0 && plain >= 0 && is_rsocket(fd) && !is_rsocket(plain));
        CHECK(ioctl(fd, SIOCGIFADDR, &ours) == 0 && ioctl(plain, SIOCGIFADDR, &kernel) == 0);
        CHECK(memcmp(&ours, &kernel, sizeof ours) == 0);
        CHECK(ioctl(fd, SIOCGIFNETMASK, &ours) == 0 && ioctl(plain, SIOCGIFNETMASK, &kernel) == 0);
        CHECK(memcmp(&ours, &kernel, sizeof ours) == 0);
        CHECK(ioctl(fd, FIONREAD, &unread) == 0 && unread == 0);
        CHECK(close(fd) == 0 && close(plain) == 0);
    }
    struct sockaddr_in name = address;
    socklen_t length = sizeof name;
    int from = socket(AF_INET, SOCK_DGRAM, 0), to = socket(AF_INET, SOCK_DGRAM, 0);
    struct pollfd arrived = {to, POLLIN, 0};
    CHECK(bind(to, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK(getsockname(to, (struct sockaddr *)&name, &length) == 0);
    CHECK(sendto(from, "datagram", 8, 0, (struct sockaddr *)&name, sizeof name) == 8);
    CHECK(poll(&arrived, 1, 20000) == 1 && ioctl(to, FIONREAD, &unread) == 0 && unread == 8);
    CHECK(ioctl(ends.server, SIOCGIFADDR, NULL) == -1 && errno == EFAULT);
}

/* An rsocket, a pipe, and something that never comes. */
static void waiting(void) {
    struct ends ends = connected();
    int pipes[2][2];
    CHECK(pipe(pipes[0]) == 0 && pipe(pipes[1]) == 0);
    struct pollfd fds[] = {
        {ends.server, POLLIN, 0}, {pipes[0][0], POLLIN, 0}, {pipes[1][0], POLLIN, 0}, {-1, POLLIN, 0},
        {ends.server, POLLOUT, 0},
    };
    struct timespec nothing = {0}, long_time = {.tv_sec = 100};
    CHECK(poll(fds, 4, 0) == 0 && poll(fds, 4, 20) == 0);
    CHECK(ppoll(fds, 5, &nothing, NULL) == 1 && fds[4].revents == POLLOUT);
    CHECK(write(ends.client, "x", 1) == 1);
    CHECK(poll(fds, 4, -1) == 1 && fds[0].revents == POLLIN && fds[1].revents == 0);
    CHECK(write(pipes[0][1], "y", 1) == 1);
    CHECK(ppoll(fds, 4, &long_time, NULL) == 2 && fds[1].revents == POLLIN);
    fd_set read_set, write_set;
    int most = ends.server > pipes[1][0] ? ends.server : pipes[1][0];
    for (int round = 0; round < 2; round++) {
        FD_ZERO(&read_set);
        FD_ZERO(&write_set);
        FD_SET(ends.server, &read_set);
        FD_SET(pipes[0][0], &read_set);
        FD_SET(pipes[1][0], &read_set);
        FD_SET(ends.client, &write_set);
        if (ends.client > most)
            most = ends.client;
        int ready = round == 0 ? select(most + 1, &read_set, &write_set, NULL, NULL)
                               : pselect(most + 1, &read_set, &write_set, NULL, &long_time, NULL);
        CHECK(ready == 3);
        CHECK(FD_ISSET(ends.server, &read_set) && FD_ISSET(pipes[0][0], &read_set));
        CHECK(!FD_ISSET(pipes[1][0], &read_set) && FD_ISSET(ends.client, &write_set));
    }
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1}, events[4];
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends.server, &event) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends.server, &event) == -1 && errno == EEXIST);
    event.data.u32 = 2;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0][0], &event) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, pipes[1][0], &event) == -1 && errno == ENOENT);
    CHECK(epoll_wait(set, events, 4, -1) == 2 && events[0].data.u32 + events[1].data.u32 == 3);
    CHECK(epoll_pwait(set, events, 1, -1, NULL) == 1);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, ends.server, NULL) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, ends.server, NULL) == -1 && errno == ENOENT);
    CHECK(epoll_wait(set, events, 4, 0) == 1 && events[0].data.u32 == 2);
}

static volatile sig_atomic_t handled;

static void handle(int signal) {
    (void)signal;
    ++handled;
}

static void ring_in(int millis) {
    struct itimerval time = {.it_value = {0, millis * 1000}};
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

/* A signal that is let through only while the program waits ends that, also one that has come before. */
static void masks(void) {
    struct ends ends = connected();
    sigset_t alarms, none;
    struct sigaction action = {.sa_handler = handle};
    sigemptyset(&none);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(sigprocmask(SIG_BLOCK, &alarms, NULL) == 0);
    struct pollfd asked = {.fd = ends.server, .events = POLLIN};
    struct timespec time = {5, 0};
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends.server, &event) == 0);
    for (int early = 0; early < 2; ++early) {
        fd_set read_set;
        handled = 0;
        early ? (void)raise(SIGALRM) : ring_in(200);
        CHECK(ppoll(&asked, 1, &time, &none) == -1 && errno == EINTR);
        CHECK(handled == 1);
        FD_ZERO(&read_set);
        FD_SET(ends.server, &read_set);
        early ? (void)raise(SIGALRM) : ring_in(200);
        CHECK(pselect(ends.server + 1, &read_set, NULL, NULL, &time, &none) == -1 && errno == EINTR);
        CHECK(handled == 2);
        early ? (void)raise(SIGALRM) : ring_in(200);
        CHECK(epoll_pwait(set, &event, 1, 5000, &none) == -1 && errno == EINTR);
        CHECK(handled == 3);
    }
    /* Ready events are returned first, and the signal stays pending. */
    CHECK(write(ends.client, "x", 1) == 1);
    CHECK(poll(&asked, 1, -1) == 1);
    CHECK(raise(SIGALRM) == 0);
    CHECK(ppoll(&asked, 1, &time, &none) == 1);
    CHECK(epoll_pwait(set, &event, 1, 5000, &none) == 1);
    CHECK(handled == 3);
}

/* Signals that the program takes by itself come to it, though it has had a socket before. */
static void threads(void) {
    struct ends ends = connected();
    sigset_t ends_it;
    struct timespec time = {5, 0};
    passes(ends.client, ends.server);
    sigemptyset(&ends_it);
    sigaddset(&ends_it, SIGTERM);
    CHECK(sigprocmask(SIG_BLOCK, &ends_it, NULL) == 0);
    CHECK(kill(getpid(), SIGTERM) == 0);
    CHECK(sigtimedwait(&ends_it, NULL, &time) == SIGTERM);
}

static void ordinary_epoll(void) {
    int ends[2], set = epoll_create1(0), outer = epoll_create(1);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET}, events[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, set, &event) == 0);
    CHECK(write(ends[1], "x", 1) == 1);
    CHECK(epoll_wait(outer, events, 2, -1) == 1);
    /* Only the kernel knows of edges. */
    CHECK(epoll_wait(set, events, 2, -1) == 1 && epoll_wait(set, events, 2, 0) == 0);
    CHECK(close_range(500, ~0U, 0) == 0);
}

/* With RS_SQ_SIZE, RS_RQ_SIZE and RS_INLINE as main.rs sets them */
static void sizes(void) {
    struct ends ends = connected();
    int both[] = {ends.client, ends.server}, wanted[] = {100, 200, 32};
    for (int side = 0; side < 2; side++) {
        for (int option = 0; option < 3; option++) {
            int value = 0;
            socklen_t length = sizeof value;
            CHECK(getsockopt(both[side], 0x10000, option, &value, &length) == 0);
            CHECK(value == wanted[option] || (option == 2 && value >= 32));
        }
    }
}

static void accepting(void) {
    struct sockaddr_in name;
    int listener = listener_at(&name), client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    CHECK(accept(listener, NULL, NULL) == -1 && errno == EAGAIN);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == -1 && errno == EINPROGRESS);
    struct pollfd fds[] = {{listener, POLLIN, 0}, {client, POLLOUT, 0}};
    CHECK(poll(fds, 1, -1) == 1);
    int server = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(server >= 0 && fcntl(server, F_GETFD) == FD_CLOEXEC);
    CHECK(fcntl(server, F_GETFL) & O_NONBLOCK);
    CHECK(poll(fds + 1, 1, -1) == 1 && fds[1].revents == POLLOUT);
    int error = -1;
    socklen_t length = sizeof error;
    CHECK(getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
    CHECK(fcntl(server, F_SETFL, 0) == 0);
    passes(client, server);
    CHECK(listen(server, 1) == -1 && errno == EINVAL && is_rsocket(server));
    passes(client, server);
}

/* The process may not lock the memory of a connection. */
static void limited(void) {
    struct sockaddr_in bound = address, now;
    socklen_t length = sizeof bound;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, twin = dup(listener);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&bound, sizeof bound) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&bound, &length) == 0 && bound.sin_port != 0);
    CHECK(fcntl(listener, F_SETFL, O_NONBLOCK) == 0 && is_rsocket(listener));
    CHECK(listen(listener, 4) == 0 && !is_rsocket(listener) && !is_rsocket(twin));
    CHECK(getsockname(twin, (struct sockaddr *)&now, &length) == 0);
    CHECK(now.sin_port == bound.sin_port && now.sin_addr.s_addr == bound.sin_addr.s_addr);
    on = 0, length = sizeof on;
    CHECK(getsockopt(twin, SOL_SOCKET, SO_REUSEADDR, &on, &length) == 0 && on);
    CHECK(accept(twin, NULL, NULL) == -1 && errno == EAGAIN);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(client, (struct sockaddr *)&bound, sizeof bound) == 0 && !is_rsocket(client));
    struct pollfd asked = {listener, POLLIN, 0};
    CHECK(poll(&asked, 1, -1) == 1);
    int server = accept(listener, NULL, NULL);
    CHECK(server >= 0);
    passes(client, server);
    passes(server, client);
    /* Another listener also falls back. */
    CHECK(!is_rsocket(listener_at(&now)));
}

/* The same, and the port is taken for TCP. */
static void limited_at_taken_port(void) {
    struct sockaddr_in taken;
    socklen_t length = sizeof taken;
    int listener = socket(AF_INET, SOCK_STREAM, 0), tcp = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&taken, &length) == 0);
    CHECK(!is_rsocket(tcp) && bind(tcp, (struct sockaddr *)&taken, sizeof taken) == 0 && listen(tcp, 1) == 0);
    CHECK(listen(listener, 4) == -1 && errno == EADDRINUSE);
    /* The port is bound as before. */
    CHECK(is_rsocket(listener) && listen(listener, 4) == -1 && errno == EADDRINUSE);
    CHECK(close(tcp) == 0 && listen(listener, 4) == 0 && !is_rsocket(listener));
}

static void write_line(const char *path, const char *line) {
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(line, file) >= 0 && fclose(file) == 0);
}

/* The system chooses a port that is free for TCP too: of 64, TCP sockets have all but one. Connections of earlier tests have
   ports of the range before. */
static void free_port(void) {
    const char *range = "/proc/sys/net/ipv4/ip_local_port_range";
    enum { FIRST = 20000, PORTS = 64, FREE = FIRST + 37 };
    char before[64], few[64];
    FILE *file = fopen(range, "r");
    CHECK(file && fgets(before, sizeof before, file) && fclose(file) == 0);
    snprintf(few, sizeof few, "%d %d", FIRST, FIRST + PORTS - 1);
    write_line(range, few);
    int taken[PORTS];
    struct sockaddr_in name = address;
    socklen_t length = sizeof name;
    for (int at = 0; at < PORTS; at++) {
        name.sin_port = htons(FIRST + at);
        taken[at] = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
        CHECK(taken[at] >= 0 && bind(taken[at], (struct sockaddr *)&name, sizeof name) == 0);
    }
    close(taken[FREE - FIRST]);
    int socket_of_any_port = socket(AF_INET, SOCK_STREAM, 0);
    name.sin_port = 0;
    CHECK(bind(socket_of_any_port, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK(getsockname(socket_of_any_port, (struct sockaddr *)&name, &length) == 0);
    CHECK(is_rsocket(socket_of_any_port) && name.sin_port == htons(FREE));
    write_line(range, before);
}

static void closing_ranges(void) {
    struct ends ends = connected(), others = connected();
    int high = fcntl(others.client, F_DUPFD, 700);
    CHECK(high >= 700 && close(others.client) == 0);
    CHECK(open("/dev/null", O_RDONLY) < 600 && dup2(0, 600) == 600 && dup2(0, 601) == 601);
    CHECK(close_range(600, 699, 0) == 0 && fcntl(600, F_GETFD) == -1 && fcntl(601, F_GETFD) == -1);
    passes(ends.client, ends.server);
    CHECK(close_range(700, ~0U, 0) == 0 && fcntl(high, F_GETFD) == -1);
    char end;
    CHECK(read(others.server, &end, 1) == 0);
    passes(ends.server, ends.client);
    /* Everything goes, and new ones can be made. */
    closefrom(3);
    CHECK(fcntl(ends.client, F_GETFD) == -1 && fcntl(ends.server, F_GETFD) == -1);
    ends = connected();
    CHECK(is_rsocket(ends.client));
    passes(ends.client, ends.server);
}

static int number(int fd, unsigned long request) {
    int value = -1;
    CHECK(ioctl(fd, request, &value) == 0);
    return value;
}

/* Calls in the wrong state fail as with TCP and change nothing. */
static void misused(void) {
    struct sockaddr_in name;
    char bytes[] = "bytes", control[CMSG_SPACE(sizeof(int))] = {0};
    int listener = listener_at(&name), client = socket(AF_INET, SOCK_STREAM, 0), value;
    CHECK(shutdown(client, SHUT_WR) == -1 && errno == ENOTCONN);
    CHECK(connect(listener, (struct sockaddr *)&name, sizeof name) == -1 && errno == EISCONN);
    CHECK(is_rsocket(listener) && ioctl(listener, SIOCOUTQ, &value) == -1 && errno == EINVAL);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    int server = accept(listener, NULL, NULL);
    CHECK(connect(client, (struct sockaddr *)&name, 3) == -1 && is_rsocket(client));
    passes(client, server);
    passes(server, client);
    /* As programs wait for the end of their data. */
    for (int waits = 0; number(client, SIOCOUTQ) != 0; waits++)
        CHECK(waits < 1000 && usleep(10000) == 0);
    CHECK(number(client, SIOCOUTQNSD) == 0 && number(client, SIOCATMARK) == 0);
    /* TCP ignores what is meant for a local socket. */
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    CHECK(sendmsg(client, &message, 0) == sizeof bytes && recv(server, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
    /* A datagram with control data turns the socket to UDP. */
    int datagrams = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(datagrams, (struct sockaddr *)&address, sizeof address) == 0 && is_rsocket(datagrams));
    CHECK(sendmsg(datagrams, &message, 0) == -1 && errno == EDESTADDRREQ && !is_rsocket(datagrams));
    /* Two sockets may be bound to an address. For RDMA, neither may listen, and no TCP socket takes its place. */
    int first = socket(AF_INET, SOCK_STREAM, 0), second = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in shared = address;
    socklen_t length = sizeof shared;
    CHECK(setsockopt(first, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(setsockopt(second, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(first, (struct sockaddr *)&shared, sizeof shared) == 0);
    CHECK(getsockname(first, (struct sockaddr *)&shared, &length) == 0);
    CHECK(bind(second, (struct sockaddr *)&shared, sizeof shared) == 0);
    CHECK(listen(second, 1) == -1 && errno == EADDRINUSE && is_rsocket(second));
    /* A refused connect in the background. */
    CHECK(close(listener) == 0);
    int refused = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct pollfd asked = {refused, POLLOUT, 0};
    CHECK(connect(refused, (struct sockaddr *)&name, sizeof name) == -1 && errno == EINPROGRESS);
    CHECK(poll(&asked, 1, -1) == 1 && asked.revents == (POLLOUT | POLLERR | POLLHUP));
}

/* No rsocket listener at this address. */
static void fallback(void) {
    struct sockaddr_in name = address, bound = address;
    socklen_t length = sizeof name;
    int listener = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    CHECK(syscall(SYS_bind, listener, &name, sizeof name) == 0);
    CHECK(syscall(SYS_listen, listener, 4) == 0);
    CHECK(syscall(SYS_getsockname, listener, &name, &length) == 0);
    int client = socket(AF_INET, SOCK_STREAM, 0), on = 1, twin;
    CHECK(is_rsocket(client));
    CHECK(setsockopt(client, IPPROTO_TCP, 1, &on, sizeof on) == 0);
    CHECK(bind(client, (struct sockaddr *)&bound, sizeof bound) == 0);
    CHECK(getsockname(client, (struct sockaddr *)&bound, &length) == 0 && bound.sin_port != 0);
    twin = dup(client);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK(!is_rsocket(client) && !is_rsocket(twin));
    struct sockaddr_in now;
    CHECK(getsockname(twin, (struct sockaddr *)&now, &length) == 0);
    CHECK(now.sin_port == bound.sin_port && now.sin_addr.s_addr == bound.sin_addr.s_addr);
    int type = 0;
    on = 0, length = sizeof type;
    CHECK(getsockopt(client, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM);
    CHECK(getsockopt(client, IPPROTO_TCP, 1, &on, &length) == 0 && on);
    int server = syscall(SYS_accept, listener, NULL, NULL);
    passes(twin, server);
}

/* A socket falling back to TCP stays in its epoll. */
static void watched_fallback(void) {
    struct sockaddr_in name = {.sin_family = AF_INET}, from;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7}, events[2];
    socklen_t length = sizeof name;
    int set = epoll_create1(0), twin = dup(set);
    char in[8];
    name.sin_addr.s_addr = htonl(0x7f000002);
    int peer = syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(syscall(SYS_bind, peer, &name, sizeof name) == 0);
    CHECK(syscall(SYS_getsockname, peer, &name, &length) == 0);
    CHECK(is_rsocket(client) && epoll_ctl(set, EPOLL_CTL_ADD, client, &event) == 0);
    CHECK(sendto(client, "ask", 3, 0, (struct sockaddr *)&name, sizeof name) == 3);
    CHECK(!is_rsocket(client) && epoll_wait(set, events, 2, 20) == 0);
    CHECK(syscall(SYS_recvfrom, peer, in, sizeof in, 0, &from, &length) == 3);
    CHECK(syscall(SYS_sendto, peer, "answer", 6, 0, &from, sizeof from) == 6);
    CHECK(epoll_wait(set, events, 2, 20000) == 1);
    CHECK(events[0].events == EPOLLIN && events[0].data.u32 == 7);
    CHECK(recv(client, in, sizeof in, 0) == 6);
    event.events = EPOLLOUT, event.data.u32 = 8;
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, client, &event) == 0);
    CHECK(epoll_wait(twin, events, 2, 20000) == 1 && events[0].data.u32 == 8);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, client, NULL) == 0);

    int listener = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
    CHECK(syscall(SYS_bind, listener, &address, sizeof address) == 0);
    CHECK(syscall(SYS_listen, listener, 4) == 0);
    CHECK(syscall(SYS_getsockname, listener, &name, &length) == 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    event.events = EPOLLIN, event.data.u32 = 9;
    CHECK(is_rsocket(client) && epoll_ctl(set, EPOLL_CTL_ADD, client, &event) == 0);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0 && !is_rsocket(client));
    int server = syscall(SYS_accept, listener, NULL, NULL);
    CHECK(epoll_wait(set, events, 2, 20) == 0 && write(server, "x", 1) == 1);
    CHECK(epoll_wait(set, events, 2, 20000) == 1 && events[0].data.u32 == 9);
}

/* Data both ways between a client and a server at a loopback address; the server may be a child. */
static void at_loopback(int family, const void *at, socklen_t size, int forked) {
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    int listener = socket(family, SOCK_STREAM, 0), client = socket(family, SOCK_STREAM, 0);
    CHECK(bind(listener, at, size) == 0 && listen(listener, 4) == 0 && !is_rsocket(listener));
    CHECK(getsockname(listener, (struct sockaddr *)&name, &length) == 0);
    pid_t child = forked ? fork() : -1;
    if (child != 0) {
        CHECK(connect(client, (struct sockaddr *)&name, length) == 0 && !is_rsocket(client));
        CHECK(connect(client, (struct sockaddr *)&name, length) == -1 && errno == EISCONN);
    }
    int server = child > 0 ? -1 : accept(listener, NULL, NULL);
    char bytes[6] = "hello";
    if (child != 0)
        CHECK(send(client, bytes, sizeof bytes, 0) == sizeof bytes);
    if (child <= 0) {
        CHECK(server >= 0 && recv(server, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
        CHECK(send(server, bytes, sizeof bytes, 0) == sizeof bytes && !is_rsocket(server));
    }
    if (child == 0)
        _exit(0);
    memset(bytes, 0, sizeof bytes);
    CHECK(recv(client, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes && strcmp(bytes, "hello") == 0);
    int status = 0;
    CHECK(child < 0 || (waitpid(child, &status, 0) == child && status == 0));
    CHECK(close(listener) == 0 && close(client) == 0 && (server < 0 || close(server) == 0));
    /* Nothing listens any more, and the socket may try again. */
    client = socket(family, SOCK_STREAM, 0);
    for (int attempt = 0; attempt < 2; attempt++)
        CHECK(connect(client, (struct sockaddr *)&name, length) == -1 && errno == ECONNREFUSED);
    CHECK(close(client) == 0);
}

static void loopback(void) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT}, mapped = v6;
    CHECK(inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr) == 1);
    for (int forked = 0; forked < 2; forked++) {
        at_loopback(AF_INET, &v4, sizeof v4, forked);
        at_loopback(AF_INET6, &v6, sizeof v6, forked);
        at_loopback(AF_INET6, &mapped, sizeof mapped, forked);
    }
    int ends[] = {socket(AF_INET, SOCK_DGRAM, 0), socket(AF_INET, SOCK_DGRAM, 0)};
    socklen_t length = sizeof v4;
    CHECK(bind(ends[0], (struct sockaddr *)&v4, sizeof v4) == 0 && !is_rsocket(ends[0]));
    CHECK(getsockname(ends[0], (struct sockaddr *)&v4, &length) == 0);
    CHECK(connect(ends[1], (struct sockaddr *)&v4, sizeof v4) == 0 && !is_rsocket(ends[1]));
    passes(ends[1], ends[0]);
}

/* A child using an inherited rsocket gets a message, and its parent continues. */
static void inherited(void) {
    struct ends ends = connected();
    passes(ends.client, ends.server);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        struct pollfd asked = {ends.client, POLLIN, 0};
        CHECK(poll(&asked, 1, -1) == 1);
        CHECK(read(ends.client, &byte, 1) == -1 && errno == ENOTCONN);
        CHECK(send(ends.client, "x", 1, MSG_NOSIGNAL) == -1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    passes(ends.client, ends.server);
    passes(ends.server, ends.client);
}

/* The same for one that was TCP at first, and was moved when its parent used it. */
static void moved(void) {
    struct sockaddr_in name;
    int listener = listener_at(&name), status;
    pid_t client = fork(), child;
    char bytes[8];
    CHECK(client >= 0);
    if (client == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == 0 && write(fd, "ask", 3) == 3);
        CHECK(recv(fd, bytes, 6, MSG_WAITALL) == 6 && memcmp(bytes, "answer", 6) == 0);
        _exit(0);
    }
    int server = accept(listener, NULL, NULL);
    CHECK(server >= 0 && !is_rsocket(server) && recv(server, bytes, 3, MSG_WAITALL) == 3 && is_rsocket(server));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(read(server, bytes, 1) == -1 && errno == ENOTCONN);
        CHECK(send(server, "x", 1, MSG_NOSIGNAL) == -1);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(write(server, "answer", 6) == 6);
    CHECK(waitpid(client, &status, 0) == client && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* There is no device to be had. */
static void no_device(void) {
    struct ends ends = connected();
    struct sockaddr_in name = address, seen;
    socklen_t length = sizeof name;
    int type = 0, datagrams[2];
    CHECK(!is_rsocket(ends.client) && !is_rsocket(ends.server));
    CHECK(getsockopt(ends.client, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM);
    passes(ends.client, ends.server);
    passes(ends.server, ends.client);
    for (int side = 0; side < 2; side++) {
        datagrams[side] = socket(AF_INET, SOCK_DGRAM, 0);
        CHECK(datagrams[side] >= 0 && !is_rsocket(datagrams[side]));
        CHECK(bind(datagrams[side], (struct sockaddr *)&address, sizeof address) == 0);
    }
    length = sizeof type;
    CHECK(getsockopt(datagrams[0], SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_DGRAM);
    length = sizeof name;
    CHECK(getsockname(datagrams[0], (struct sockaddr *)&name, &length) == 0);
    CHECK(getsockname(datagrams[1], (struct sockaddr *)&seen, &length) == 0);
    CHECK(name.sin_port != 0 && seen.sin_port != name.sin_port);
    CHECK(connect(datagrams[0], (struct sockaddr *)&seen, sizeof seen) == 0);
    passes(datagrams[0], datagrams[1]);
    struct pollfd fds[] = {{ends.client, POLLIN | POLLOUT, 0}, {datagrams[0], POLLIN | POLLOUT, 0}};
    CHECK(poll(fds, 2, -1) == 2 && fds[0].revents == POLLOUT && fds[1].revents == POLLOUT);
}

static void first_recv(void) {
    char byte;
    CHECK(recv(999, &byte, 1, 0) == -1 && errno == EBADF);
}

static void first_select(void) {
    struct timeval nothing = {0};
    CHECK(select(0, NULL, NULL, NULL, &nothing) == 0);
}

static void first_connect(void) {
    CHECK(connect(999, (struct sockaddr *)&address, sizeof address) == -1 && errno == EBADF);
}

static void first_epoll(void) {
    struct epoll_event event;
    CHECK(epoll_wait(999, &event, 1, 0) == -1 && errno == EBADF);
}

static const struct part parts[] = {
    {"duplicates", duplicates},     {"files", files},       {"messages", messages},
    {"requests", requests},
    {"waiting", waiting},           {"epoll", ordinary_epoll}, {"sizes", sizes},
    {"accepting", accepting},       {"ranges", closing_ranges}, {"fallback", fallback},
    {"watched-fallback", watched_fallback}, {"no-device", no_device}, {"masks", masks},
    {"threads", threads},           {"inherited", inherited},       {"moved", moved},
    {"misused", misused},           {"limited", limited},
    {"free-port", free_port},       {"limited-taken", limited_at_taken_port},
    {"loopback", loopback},
    {"first-recv", first_recv},     {"first-select", first_select},
    {"first-connect", first_connect}, {"first-epoll", first_epoll},
};

int main(int argc, char **argv) {
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
