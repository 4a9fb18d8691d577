/* Sockets of librsocket.so, used from C: both ends in one process. argv[1] is the address. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "rsocket.h"

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);    \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

#define FAILS(call, number)                                                              \
    do {                                                                                 \
        errno = 0;                                                                       \
        CHECK((long)(call) == -1);                                                       \
        CHECK(errno == (number));                                                        \
    } while (0)

#include "../../../../interpose/tests/blocked.h"

static struct sockaddr_in address;
static char target[8192];

static int option(int fd, int level, int name) {
    int value = -7;
    socklen_t len = sizeof value;
    CHECK(rgetsockopt(fd, level, name, &value, &len) == 0 && len == sizeof value);
    return value;
}

static void set(int fd, int level, int name, int value) {
    CHECK(rsetsockopt(fd, level, name, &value, sizeof value) == 0);
}

static short wait_for(int fd, short events) {
    struct pollfd one = {.fd = fd, .events = events};
    CHECK(rpoll(&one, 1, 20000) == 1);
    return one.revents;
}

static void bad_arguments(void) {
    FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
    FAILS(rsocket(AF_INET, SOCK_SEQPACKET, 0), ENOTSUP);
    FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
    FAILS(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP), ENOTSUP);
    int bad[] = {-1, 1000, 65536};
    char byte;
    for (int i = 0; i < 3; i++) {
        FAILS(rbind(bad[i], (void *)&address, sizeof address), EBADF);
        FAILS(rlisten(bad[i], 1), EBADF);
        FAILS(raccept(bad[i], NULL, NULL), EBADF);
        FAILS(rconnect(bad[i], (void *)&address, sizeof address), EBADF);
        FAILS(rshutdown(bad[i], SHUT_RD), EBADF);
        FAILS(rclose(bad[i]), EBADF);
        FAILS(rrecv(bad[i], &byte, 1, 0), EBADF);
        FAILS(rsend(bad[i], &byte, 1, 0), EBADF);
        FAILS(rfcntl(bad[i], F_GETFL), EBADF);
        FAILS(riomap(bad[i], &byte, 1, PROT_WRITE, 0, 0), EBADF);
        FAILS(riounmap(bad[i], &byte, 1), EBADF);
        FAILS(riowrite(bad[i], &byte, 1, 0, 0), EBADF);
        FAILS(repoll_ctl(bad[i], EPOLL_CTL_DEL, 0, NULL), EBADF);
    }
    int fd = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    CHECK(fd >= 0);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && rfcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(rfcntl(fd, F_GETFL) == (O_RDWR | O_NONBLOCK));
    CHECK(rfcntl(fd, F_SETFL, 0) == 0 && rfcntl(fd, F_GETFL) == O_RDWR);
    CHECK(rfcntl(fd, F_SETFD, 0) == 0 && fcntl(fd, F_GETFD) == 0);
    FAILS(rfcntl(fd, F_DUPFD, 0), ENOTSUP);
    FAILS(rrecv(fd, &byte, 1, 0), ENOTCONN);
    FAILS(rconnect(fd, (void *)&address, 7), EINVAL);
    FAILS(rconnect(fd, NULL, 0), EFAULT);
    CHECK(rclose(fd) == 0);
    FAILS(rclose(fd), EBADF);
}

static void options(void) {
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(option(fd, SOL_RDMA, RDMA_SQSIZE) == 384 && option(fd, SOL_RDMA, RDMA_RQSIZE) == 384);
    CHECK(option(fd, SOL_RDMA, RDMA_INLINE) == 64 && option(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 0);
    set(fd, SOL_RDMA, RDMA_IOMAPSIZE, 300);
    CHECK(option(fd, SOL_RDMA, RDMA_IOMAPSIZE) == 256);
    set(fd, SOL_RDMA, RDMA_SQSIZE, 70000);
    CHECK(option(fd, SOL_RDMA, RDMA_SQSIZE) == 65534);
    set(fd, SOL_SOCKET, SO_RCVBUF, 32768);
    CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) == 32768);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    CHECK(option(fd, SOL_SOCKET, SO_REUSEADDR) == 1);
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    CHECK(option(fd, IPPROTO_TCP, TCP_NODELAY) == 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 9);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 9);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPINTVL) == 75);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPINTVL) == 5);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPCNT) == 9);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPCNT) == 3);
    CHECK(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 2500);
    CHECK(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) == 2500);
    CHECK(option(fd, IPPROTO_TCP, TCP_MAXSEG) == 2032);
    CHECK(option(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
    CHECK(option(fd, SOL_SOCKET, SO_ERROR) == 0);
    set(fd, IPPROTO_IP, IP_TOS, 16);
    CHECK(option(fd, IPPROTO_IP, IP_TOS) == 16);
    char tos = 32;
    CHECK(rsetsockopt(fd, IPPROTO_IP, IP_TOS, &tos, 1) == 0);
    CHECK(option(fd, IPPROTO_IP, IP_TOS) == 32);
    struct linger linger = {.l_onoff = 1, .l_linger = 3}, read = {0};
    socklen_t len = sizeof read;
    CHECK(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &read, &len) == 0 && len == sizeof read);
    CHECK(read.l_onoff == 1 && read.l_linger == 3);
    int zero = 0;
    FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &zero, sizeof zero), EINVAL);
    FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &zero, sizeof zero), EINVAL);
    FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &zero, sizeof zero), EINVAL);
    int negative = -1;
    FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &negative, sizeof negative), EINVAL);
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    CHECK(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) == 0);
    FAILS(rsetsockopt(fd, SOL_RDMA, 99, &zero, sizeof zero), ENOTSUP);
    CHECK(rclose(fd) == 0);
}

static void more_options(void) {
    int fd = rsocket(AF_INET6, SOCK_STREAM, 0), one = 1;
    const struct {
        int level, name, before, value, after;
    } kept[] = {
        {SOL_SOCKET, SO_SNDBUF, 131072, 65536, 65536},
        {SOL_SOCKET, SO_KEEPALIVE, 0, 1, 1},
        {SOL_SOCKET, SO_OOBINLINE, 0, 1, 1},
        {IPPROTO_IPV6, IPV6_V6ONLY, 0, 1, 1},
        {IPPROTO_TCP, TCP_MAXSEG, 2020, 500, 2020},
        {IPPROTO_TCP, TCP_CORK, 0, 1, 1},
        {SOL_SOCKET, SO_BROADCAST, 0, 1, 1},
        {SOL_RDMA, RDMA_RQSIZE, 384, 100, 100},
        {SOL_RDMA, RDMA_INLINE, 64, 128, 128},
        {SOL_RDMA, RDMA_IOMAPSIZE, 0, 200, 128},
    };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        CHECK(option(fd, kept[i].level, kept[i].name) == kept[i].before);
        set(fd, kept[i].level, kept[i].name, kept[i].value);
        CHECK(option(fd, kept[i].level, kept[i].name) == kept[i].after);
    }
    CHECK(option(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET6);
    CHECK(option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
    CHECK(option(fd, SOL_SOCKET, SO_ACCEPTCONN) == 0);
    struct timeval period = {.tv_sec = 2, .tv_usec = 500000}, read;
    for (int name = 0; name < 2; name++) {
        int timeout = name == 0 ? SO_RCVTIMEO : SO_SNDTIMEO;
        socklen_t len = sizeof read;
        CHECK(rsetsockopt(fd, SOL_SOCKET, timeout, &period, sizeof period) == 0);
        CHECK(rgetsockopt(fd, SOL_SOCKET, timeout, &read, &len) == 0 && len == sizeof read);
        CHECK(read.tv_sec == 2 && read.tv_usec == 500000);
    }
    FAILS(rsetsockopt(fd, SOL_SOCKET, SO_ERROR, &one, sizeof one), ENOPROTOOPT);
    FAILS(rsetsockopt(fd, SOL_SOCKET, SO_TYPE, &one, sizeof one), ENOPROTOOPT);
    FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_INFO, &one, sizeof one), ENOPROTOOPT);
    FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_ROUTE, &one, sizeof one), EINVAL);
    FAILS(rsetsockopt(fd, 12345, 1, &one, sizeof one), ENOPROTOOPT);
    socklen_t len = sizeof one;
    FAILS(rgetsockopt(fd, 12345, 1, &one, &len), ENOTSUP);
    CHECK(rclose(fd) == 0);
}

static int listener(void) {
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    set(fd, SOL_RDMA, RDMA_IOMAPSIZE, 2);
    address.sin_port = 0;
    CHECK(rbind(fd, (void *)&address, sizeof address) == 0);
    CHECK(rlisten(fd, 8) == 0 && rlisten(fd, 8) == 0);
    socklen_t len = sizeof address;
    CHECK(rgetsockname(fd, (void *)&address, &len) == 0 && len == sizeof address);
    return fd;
}

static void messages(int client, int server) {
    struct sockaddr_in name;
    memset(&name, 0xee, sizeof name);
    socklen_t len = 4;
    CHECK(rgetpeername(client, (void *)&name, &len) == 0 && len == sizeof name);
    CHECK(name.sin_port == address.sin_port && name.sin_addr.s_addr == 0xeeeeeeee);

    char one[3], two[9];
    struct iovec parts[] = {{"some", 4}, {NULL, 0}, {"thing", 5}};
    struct iovec places[] = {{one, 3}, {NULL, 0}, {two, 6}};
    struct msghdr out = {.msg_iov = parts, .msg_iovlen = 3};
    struct msghdr in = {.msg_iov = places, .msg_iovlen = 3};
    FAILS(rrecvmsg(server, &in, MSG_DONTWAIT), EAGAIN);
    CHECK(rsendmsg(client, &out, 0) == 9);
    CHECK(wait_for(server, POLLIN) == POLLIN);
    CHECK(wait_for(server, POLLIN | POLLOUT) == (POLLIN | POLLOUT));
    CHECK(rrecv(server, two, 4, MSG_PEEK) > 0 && two[0] == 's');
    in.msg_name = &name;
    in.msg_namelen = sizeof name;
    CHECK(rrecvmsg(server, &in, MSG_WAITALL) == 9);
    CHECK(memcmp(one, "som", 3) == 0 && memcmp(two, "ething", 6) == 0);
    CHECK(in.msg_namelen == sizeof name && name.sin_family == AF_INET);
    FAILS(rsendto(client, "x", 1, 0, (void *)&address, sizeof address), EISCONN);
    CHECK(rwritev(server, parts, 3) == 9);
    CHECK(rrecvfrom(client, two, 9, MSG_WAITALL, NULL, NULL) == 9);
    CHECK(memcmp(two, "something", 9) == 0);
}

static void placement(int client, int server) {
    char byte;
    /* The listener has room for two mappings of its peers'. */
    FAILS(riomap(server, target, sizeof target, PROT_WRITE, 0, 0), ENOMEM);
    FAILS(riomap(client, target, sizeof target, PROT_READ, 0, 0), EINVAL);
    CHECK(riomap(client, target, 4096, PROT_WRITE, 0, -1) == (off_t)(intptr_t)target);
    CHECK(riounmap(client, target, 4096) == 0);
    CHECK(riomap(client, target, 4096, PROT_WRITE, 0, 0) == 0);
    CHECK(riomap(client, target + 4096, 4096, PROT_WRITE, 0, 4096) == 4096);
    FAILS(riomap(client, target, 4096, PROT_WRITE, 0, 9999), ENOMEM);
    CHECK(rsend(client, "m", 1, 0) == 1 && rrecv(server, &byte, 1, 0) == 1);

    CHECK(riowrite(server, "placed", 6, 4093, 0) == 6);
    CHECK(riowrite(server, "end", 3, 8190, 0) == 2);
    CHECK(riowrite(server, "nowhere", 7, 8192, 0) == 0);
    CHECK(rsend(server, "!", 1, 0) == 1 && rrecv(client, &byte, 1, 0) == 1);
    CHECK(memcmp(target + 4093, "placed", 6) == 0 && memcmp(target + 8190, "en", 2) == 0);
    FAILS(riounmap(client, target, 4095), EINVAL);
    CHECK(riounmap(client, target, 4096) == 0);
}

static void waiting(int client, int server) {
    int set = repoll_create(EPOLL_CLOEXEC), pipes[2];
    CHECK(set >= 0 && pipe(pipes) == 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 42}, seen[4];
    CHECK(repoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0);
    FAILS(repoll_ctl(set, EPOLL_CTL_ADD, server, &event), EEXIST);
    FAILS(repoll_ctl(set, EPOLL_CTL_MOD, client, &event), ENOENT);
    FAILS(repoll_ctl(set, EPOLL_CTL_ADD, set, &event), EINVAL);
    FAILS(repoll_ctl(set, EPOLL_CTL_ADD, 1000, &event), EBADF);
    event.data.u64 = 43;
    CHECK(repoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
    CHECK(repoll_wait(set, seen, 4, 50) == 0);
    CHECK(rsend(client, "x", 1, 0) == 1);
    CHECK(repoll_wait(set, seen, 4, 20000) == 1 && seen[0].data.u64 == 42);
    CHECK(seen[0].events == EPOLLIN);
    CHECK(write(pipes[1], "y", 1) == 1);
    CHECK(repoll_wait(set, seen, 4, -1) == 2);

    struct pollfd fds[] = {{.fd = -1, .events = POLLIN},
                           {.fd = pipes[0], .events = POLLIN},
                           {.fd = server, .events = POLLIN},
                           {.fd = 1000, .events = POLLIN},
                           {.fd = client, .events = POLLIN}};
    CHECK(rpoll(fds, 5, -1) == 3);
    CHECK(fds[0].revents == 0 && fds[1].revents == POLLIN && fds[2].revents == POLLIN);
    CHECK(fds[3].revents == POLLNVAL && fds[4].revents == 0);

    fd_set reads, writes;
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    FD_SET(server, &reads);
    FD_SET(client, &reads);
    FD_SET(client, &writes);
    struct timeval none = {0};
    CHECK(rselect(100, &reads, &writes, NULL, &none) == 2);
    CHECK(FD_ISSET(server, &reads) && !FD_ISSET(client, &reads) && FD_ISSET(client, &writes));
    char byte;
    CHECK(rread(server, &byte, 1) == 1);
    CHECK(rclose(set) == 0);
    close(pipes[0]);
    close(pipes[1]);
}

/* Nothing, the first descriptor, more than 64, and a connection of TCP's. */
static void many(int client, int server) {
    int pipes[2], copies[80], kept = dup(0), highest = 0;
    struct timeval soon = {.tv_usec = 20000};
    CHECK(rpoll(NULL, 0, 20) == 0 && rselect(0, NULL, NULL, NULL, &soon) == 0);
    CHECK(pipe(pipes) == 0 && dup2(pipes[0], 0) == 0);
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(0, &reads);
    FD_SET(server, &reads);
    for (int i = 0; i < 80; i++) {
        copies[i] = dup(pipes[0]);
        CHECK(copies[i] > 0 && copies[i] < FD_SETSIZE);
        FD_SET(copies[i], &reads);
        highest = copies[i] > highest ? copies[i] : highest;
    }
    soon.tv_usec = 20000;
    fd_set asked = reads;
    CHECK(rselect(highest + 1, &asked, NULL, NULL, &soon) == 0 && !FD_ISSET(0, &asked));
    CHECK(write(pipes[1], "x", 1) == 1);
    CHECK(rselect(highest + 1, &reads, NULL, NULL, NULL) == 81);
    CHECK(FD_ISSET(0, &reads) && !FD_ISSET(server, &reads));
    for (int i = 0; i < 80; i++)
        CHECK(FD_ISSET(copies[i], &reads) && close(copies[i]) == 0);
    CHECK(rsend(client, "x", 1, 0) == 1 && wait_for(server, POLLIN) == POLLIN);
    FD_ZERO(&reads);
    FD_SET(server, &reads);
    CHECK(rselect(server + 1, &reads, NULL, NULL, NULL) == 1 && FD_ISSET(server, &reads));

    struct sockaddr_in name = address;
    socklen_t len = sizeof name;
    name.sin_port = 0;
    int listens = socket(AF_INET, SOCK_STREAM, 0), calls = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(listens >= 0 && calls >= 0 && bind(listens, (void *)&name, sizeof name) == 0);
    CHECK(listen(listens, 1) == 0 && getsockname(listens, (void *)&name, &len) == 0);
    CHECK(connect(calls, (void *)&name, sizeof name) == 0);
    /* It may come a moment later. */
    CHECK(wait_for(listens, POLLIN) == POLLIN);
    struct pollfd fds[] = {{.fd = listens, .events = POLLIN | POLLOUT},
                           {.fd = calls, .events = POLLIN | POLLOUT},
                           {.fd = server, .events = POLLIN | POLLOUT},
                           {.fd = client, .events = POLLIN}};
    CHECK(rpoll(fds, 4, -1) == 3);
    CHECK(fds[0].revents == POLLIN && fds[1].revents == POLLOUT);
    CHECK(fds[2].revents == (POLLIN | POLLOUT) && fds[3].revents == 0);
    char byte;
    CHECK(rread(server, &byte, 1) == 1);
    close(calls);
    close(listens);
    close(pipes[0]);
    close(pipes[1]);
    CHECK(kept < 0 ? close(0) == 0 : dup2(kept, 0) == 0 && close(kept) == 0);
}

static int datagram_socket(struct sockaddr_in *name) {
    int fd = rsocket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
    socklen_t len = sizeof *name;
    CHECK(fd >= 0);
    *name = address;
    name->sin_port = 0;
    CHECK(rbind(fd, (void *)name, sizeof *name) == 0);
    CHECK(rgetsockname(fd, (void *)name, &len) == 0 && len == sizeof *name);
    CHECK(name->sin_port != 0);
    return fd;
}

/* The options of datagrams are those of UDP, and ours. */
static void datagram_options(void) {
    int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
    CHECK(option(fd, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
    set(fd, SOL_SOCKET, SO_BROADCAST, 1);
    CHECK(option(fd, SOL_SOCKET, SO_BROADCAST) == 1);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    CHECK(option(fd, SOL_SOCKET, SO_REUSEADDR) == 1);
    set(fd, IPPROTO_IP, IP_TTL, 7);
    CHECK(option(fd, IPPROTO_IP, IP_TTL) == 7);
    set(fd, SOL_SOCKET, SO_RCVBUF, 1 << 20);
    CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) == 1 << 20);
    set(fd, SOL_RDMA, RDMA_SQSIZE, 20);
    int one = 1;
    FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), ENOPROTOOPT);
    FAILS(rsetsockopt(fd, SOL_RDMA, 99, &one, sizeof one), ENOTSUP);
    address.sin_port = 0;
    CHECK(rbind(fd, (void *)&address, sizeof address) == 0);
    CHECK(option(fd, SOL_RDMA, RDMA_SQSIZE) == 20 && option(fd, SOL_RDMA, RDMA_RQSIZE) == 384);
    FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &one, sizeof one), EINVAL);
    FAILS(riomap(fd, target, 16, PROT_WRITE, 0, 0), EINVAL);
    FAILS(rlisten(fd, 1), EOPNOTSUPP);
    FAILS(raccept(fd, NULL, NULL), EOPNOTSUPP);
    CHECK(rclose(fd) == 0);
}

static void datagrams(void) {
    struct sockaddr_in first, second, from;
    int a = datagram_socket(&first), b = datagram_socket(&second);
    char head[3], tail[9];
    socklen_t len = sizeof from;
    FAILS(rsend(a, "x", 1, 0), EDESTADDRREQ);
    FAILS(rrecv(b, head, 3, MSG_DONTWAIT), EAGAIN);
    struct iovec parts[] = {{"some", 4}, {NULL, 0}, {"thing", 5}};
    struct iovec places[] = {{head, 3}, {tail, 4}};
    struct msghdr out = {.msg_iov = parts, .msg_iovlen = 3};
    struct msghdr in = {.msg_iov = places, .msg_iovlen = 2};
    out.msg_name = &second;
    out.msg_namelen = sizeof second;
    in.msg_name = &from;
    /* By UDP, by the device, and again. */
    for (int round = 0; round < 50; round++) {
        in.msg_namelen = sizeof from;
        CHECK(rsendmsg(a, &out, 0) == 9);
        CHECK(wait_for(b, POLLIN) == POLLIN);
        CHECK(rrecv(b, tail, 9, MSG_PEEK) == 9 && memcmp(tail, "something", 9) == 0);
        CHECK(rrecvmsg(b, &in, 0) == 7 && (in.msg_flags & MSG_TRUNC));
        CHECK(memcmp(head, "som", 3) == 0 && memcmp(tail, "ethi", 4) == 0);
        CHECK(in.msg_namelen == sizeof from && memcmp(&from, &first, 8) == 0);
        CHECK(rsendto(b, "", 0, 0, (void *)&from, sizeof from) == 0);
        len = sizeof from;
        CHECK(rrecvfrom(a, tail, 9, 0, (void *)&from, &len) == 0);
        CHECK(len == sizeof from && memcmp(&from, &second, 8) == 0);
    }
    CHECK(rconnect(a, (void *)&second, sizeof second) == 0);
    len = sizeof from;
    CHECK(rgetpeername(a, (void *)&from, &len) == 0 && memcmp(&from, &second, 8) == 0);
    CHECK(rsendto(a, "one", 3, 0, NULL, 0) == 3 && rwritev(a, parts, 3) == 9);
    CHECK(rwrite(a, "three", 5) == 5);
    CHECK(rread(b, head, 3) == 3 && rrecv(b, tail, 1, MSG_TRUNC) == 9);
    CHECK(rreadv(b, places, 2) == 5);
    FAILS(rsend(a, target, 4096, 0), EMSGSIZE);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    CHECK(rconnect(a, &none, sizeof none) == 0);
    FAILS(rgetpeername(a, (void *)&from, &len), ENOTCONN);
    int set = repoll_create(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 44}, seen;
    CHECK(repoll_ctl(set, EPOLL_CTL_ADD, b, &event) == 0);
    CHECK(repoll_wait(set, &seen, 1, 50) == 0);
    CHECK(rsendto(a, "x", 1, 0, (void *)&second, sizeof second) == 1);
    CHECK(repoll_wait(set, &seen, 1, 20000) == 1 && seen.data.u64 == 44);
    CHECK(rfcntl(b, F_SETFL, O_NONBLOCK) == 0 && rread(b, head, 3) == 1);
    FAILS(rread(b, head, 3), EAGAIN);
    CHECK(rshutdown(a, SHUT_RDWR) == 0 && rread(a, head, 3) == 0);
    FAILS(rsendto(a, "x", 1, 0, (void *)&second, sizeof second), EPIPE);
    CHECK(rclose(set) == 0 && rclose(a) == 0 && rclose(b) == 0);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void set_alarm(int micros) {
    struct itimerval timer = {.it_interval = {0, micros}, .it_value = {0, micros}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* A signal ends a wait, and nothing else. */
static void interrupted(int accepting, int client, int server) {
    struct sigaction action = {.sa_handler = on_alarm};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    char byte;
    struct pollfd one = {.fd = server, .events = POLLIN};
    set_alarm(100000);
    FAILS(rrecv(server, &byte, 1, 0), EINTR);
    FAILS(rpoll(&one, 1, -1), EINTR);
    CHECK(rfcntl(accepting, F_SETFL, 0) == 0);
    FAILS(raccept(accepting, NULL, NULL), EINTR);
    CHECK(alarms >= 3);
    /* The connect continues. */
    set_alarm(2000);
    for (int round = 0; round < 5; round++) {
        int another = rsocket(AF_INET, SOCK_STREAM, 0), accepted;
        CHECK(rconnect(another, (void *)&address, sizeof address) == 0);
        do
            accepted = raccept(accepting, NULL, NULL);
        while (accepted < 0 && errno == EINTR);
        CHECK(accepted >= 0 && rclose(another) == 0 && rclose(accepted) == 0);
    }
    set_alarm(0);
    CHECK(rsend(client, "x", 1, 0) == 1 && rrecv(server, &byte, 1, 0) == 1);
}

static void by_rrecv(int fd) {
    char byte;
    rrecv(fd, &byte, 1, 0);
}

static void by_rread(int fd) {
    char byte;
    CHECK(rread(fd, &byte, 1) != 0);
}

static void by_rpoll(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    rpoll(&one, 1, -1);
}

static void by_raccept(int fd) {
    raccept(fd, NULL, NULL);
}

static void by_rsend(int fd) {
    while (rsend(fd, target, sizeof target, 0) > 0)
        ;
}

/* Threads are cancelled at the beginning of a call and while it blocks, and the next calls find no lock taken. */
static void cancelled(int accepting) {
    int client = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(rconnect(client, (void *)&address, sizeof address) == 0);
    int server = raccept(accepting, NULL, NULL);
    CHECK(server >= 0);
    const struct {
        void (*call)(int);
        int fd;
    } calls[] = {
        {by_rrecv, server}, {by_rread, server}, {by_rpoll, server}, {by_raccept, accepting}, {by_rsend, client},
    };
    char byte;
    for (size_t i = 0; i < 2 * sizeof calls / sizeof *calls; i++) {
        pthread_t thread;
        void *result;
        struct blocked blocked = {.call = calls[i / 2].call, .fd = calls[i / 2].fd};
        CHECK(pthread_create(&thread, NULL, block, &blocked) == 0);
        if (i % 2)
            wait_asleep(&blocked);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        CHECK(rsend(server, "x", 1, 0) == 1 && rrecv(client, &byte, 1, 0) == 1);
    }
    CHECK(rclose(client) == 0 && rclose(server) == 0);
}

static sem_t held_up, let_go;

static void hold_up(int number) {
    (void)number;
    sem_post(&held_up);
    while (sem_wait(&let_go) != 0)
        ;
}

static void *receive(void *fd) {
    char byte;
    rrecv(*(int *)fd, &byte, 1, 0);
    return NULL;
}

/* A call blocked while its socket is closed may return late. The peer writes nothing more. */
static void closed_in_use(int accepting) {
    struct sigaction action = {.sa_handler = hold_up};
    pthread_t thread;
    char byte;
    int client = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(sem_init(&held_up, 0, 0) == 0 && sem_init(&let_go, 0, 0) == 0);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(rconnect(client, (void *)&address, sizeof address) == 0);
    int server = raccept(accepting, NULL, NULL);
    CHECK(server >= 0 && riomap(client, target, 4096, PROT_WRITE, 0, 0) == 0);
    CHECK(rsend(client, "m", 1, 0) == 1 && rrecv(server, &byte, 1, 0) == 1);
    CHECK(riowrite(server, "before", 6, 0, 0) == 6);
    CHECK(rsend(server, "m", 1, 0) == 1 && rrecv(client, &byte, 1, 0) == 1);
    CHECK(memcmp(target, "before", 6) == 0);
    CHECK(pthread_create(&thread, NULL, receive, &client) == 0);
    usleep(100000);
    CHECK(pthread_kill(thread, SIGUSR1) == 0 && sem_wait(&held_up) == 0);
    CHECK(rclose(client) == 0);
    memset(target, 0, 8);
    riowrite(server, "after", 5, 0, 0);
    for (int round = 0; round < 20; round++) {
        CHECK(((volatile char *)target)[0] == 0);
        usleep(10000);
    }
    CHECK(sem_post(&let_go) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(rclose(server) == 0);
}

/* The memory regions of all processes. */
static int regions(void) {
    int count = -1;
    FILE *list = popen("rdma resource show mr | wc -l", "r");
    CHECK(list && fscanf(list, "%d", &count) == 1 && pclose(list) == 0);
    return count;
}

static void late_options(int fd) {
    int value = 100, before = option(fd, SOL_SOCKET, SO_RCVBUF);
    FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, sizeof value), EINVAL);
    FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_INLINE, &value, sizeof value), EINVAL);
    FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &value, sizeof value), EINVAL);
    set(fd, SOL_SOCKET, SO_RCVBUF, before * 2);
    CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) == before);
    int mtu = option(fd, IPPROTO_TCP, TCP_MAXSEG);
    CHECK(mtu >= 256 && mtu <= 2032);
    mtu = option(fd, IPPROTO_IP, IP_MTU);
    CHECK(mtu >= 256 && mtu <= 4096 && (mtu & (mtu - 1)) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    address.sin_family = AF_INET;
    CHECK(inet_pton(AF_INET, argv[1], &address.sin_addr) == 1);
    int before = regions();
    bad_arguments();
    options();
    more_options();
    datagram_options();
    datagrams();
    int accepting = listener(), client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    FAILS(rconnect(client, (void *)&address, sizeof address), EINPROGRESS);
    CHECK(wait_for(client, POLLOUT) == POLLOUT && option(client, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(rfcntl(client, F_SETFL, 0) == 0);
    FAILS(rconnect(client, (void *)&address, sizeof address), EISCONN);
    CHECK(wait_for(accepting, POLLIN) == POLLIN);
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    int server = raccept(accepting, (void *)&peer, &len);
    CHECK(server >= 0 && len == sizeof peer && peer.sin_family == AF_INET);
    struct tcp_info info;
    len = sizeof info;
    CHECK(rgetsockopt(server, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    CHECK(info.tcpi_state == TCP_ESTABLISHED && info.tcpi_snd_cwnd == 384);
    late_options(server);
    interrupted(accepting, client, server);
    cancelled(accepting);
    messages(client, server);
    placement(client, server);
    waiting(client, server);
    many(client, server);
    closed_in_use(accepting);
    /* With an advertised mapping and one not advertised yet. */
    CHECK(riomap(client, target, 4096, PROT_WRITE, 0, 0) == 0);
    CHECK(rshutdown(client, SHUT_WR) == 0);
    char byte;
    CHECK(rrecv(server, &byte, 1, 0) == 0);
    FAILS(rsend(client, "x", 1, 0), EPIPE);
    CHECK(rclose(client) == 0);
    FAILS(rsend(client, "x", 1, 0), EBADF);
    /* The end of the connection follows the end of the data. */
    CHECK(wait_for(server, 0) & POLLHUP);
    /* A closed socket is removed from its sets. */
    int set = repoll_create(0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 45}, seen;
    CHECK(repoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0);
    CHECK(repoll_wait(set, &seen, 1, 20000) == 1 && seen.data.u64 == 45);
    CHECK(rclose(server) == 0 && repoll_wait(set, &seen, 1, 50) == 0);
    FAILS(repoll_ctl(set, EPOLL_CTL_DEL, server, NULL), EBADF);
    CHECK(rclose(set) == 0 && rclose(accepting) == 0);
    for (int round = 0; regions() > before; round++) {
        CHECK(round < 200);
        usleep(100000);
    }
    puts("all is well");
    return 0;
}
