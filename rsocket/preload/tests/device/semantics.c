/* Calls whose results programs take from TCP, beyond the common ones. The first argument is a part of this program, the
   second an address of this host. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/uio.h>

#include "calls.h"

static int arrived(int fd) {
    struct pollfd asked = {fd, POLLIN, 0};
    return poll(&asked, 1, 20000) == 1 && (asked.revents & POLLIN);
}

/* MSG_TRUNC discards bytes of a stream: the buffer may be null or shorter than the length. */
static void discarding(void) {
    struct ends ends = connected();
    char place[16] = "............";
    struct iovec vector = {place, 1 << 20};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    CHECK(write(ends.client, "0123456789", 10) == 10 && arrived(ends.server));
    CHECK(recv(ends.server, NULL, 2, MSG_TRUNC) == 2);
    CHECK(recv(ends.server, place, 1 << 20, MSG_TRUNC | MSG_PEEK) == 8);
    CHECK(recvfrom(ends.server, place, 3, MSG_TRUNC, NULL, NULL) == 3);
    CHECK(recvmsg(ends.server, &message, MSG_TRUNC) == 5);
    CHECK(strcmp(place, "............") == 0);
    CHECK(recv(ends.server, NULL, 2, MSG_TRUNC | MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

enum { HIGH = 3000, WORD = 8 * sizeof(long), WORDS = 4096 / WORD };

static int in_set(int fd, unsigned long *set) { return set[fd / WORD] >> fd % WORD & 1; }

static void put(int fd, unsigned long *set) { set[fd / WORD] |= 1UL << fd % WORD; }

/* Descriptors beyond FD_SETSIZE, numbers beyond the descriptor table, and the time left. */
static void selecting(void) {
    struct ends ends = connected();
    unsigned long reads[WORDS] = {0}, writes[WORDS] = {0};
    struct rlimit limit = {4096, 4096};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    struct timeval soon = {0, 20000}, later = {100, 0};
    put(ends.server, reads);
    CHECK(select(1000000, (fd_set *)reads, NULL, NULL, &soon) == 0 && !in_set(ends.server, reads));
    CHECK(soon.tv_sec == 0 && soon.tv_usec == 0);
    int high = fcntl(ends.server, F_DUPFD, HIGH);
    CHECK(high >= HIGH && write(ends.client, "x", 1) == 1);
    put(high, reads);
    put(ends.client, writes);
    CHECK(select(high + 1, (fd_set *)reads, (fd_set *)writes, NULL, NULL) > 0);
    CHECK(arrived(ends.server));
    put(high, reads);
    put(ends.server, reads);
    put(ends.client, writes);
    CHECK(select(high + 1, (fd_set *)reads, (fd_set *)writes, NULL, &later) == 3);
    CHECK(in_set(high, reads) && in_set(ends.server, reads) && in_set(ends.client, writes));
    CHECK(later.tv_sec == 99 && later.tv_usec > 0);
    CHECK(select(ends.server + 1, (fd_set *)reads, NULL, NULL, &later) == 1);
    struct timespec wrong[] = {{0, 1000000000}, {-1, 0}};
    struct pollfd asked = {ends.server, POLLIN, 0};
    for (int i = 0; i < 2; i++) {
        CHECK(pselect(high + 1, (fd_set *)reads, NULL, NULL, &wrong[i], NULL) == -1 && errno == EINVAL);
        CHECK(ppoll(&asked, 1, &wrong[i], NULL) == -1 && errno == EINVAL);
    }
    CHECK(select(-1, (fd_set *)reads, NULL, NULL, NULL) == -1 && errno == EINVAL);
}

/* A connection stays in the backlog until there are descriptors for it. */
static void accepting_with_few_descriptors(void) {
    struct sockaddr_in name;
    struct rlimit before, none;
    char byte;
    int listener = listener_at(&name), client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == -1 && errno == EINPROGRESS);
    CHECK(arrived(listener));
    CHECK(accept4(listener, NULL, NULL, 0x3) == -1 && errno == EINVAL);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    int server = -1;
    /* From no free descriptor to as many as the connection takes: an attempt with too few takes nothing. */
    for (none.rlim_cur = 3; server < 0; none.rlim_cur++) {
        CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
        server = accept(listener, NULL, NULL);
        CHECK(server >= 0 || errno == EMFILE);
        CHECK(server >= 0 || arrived(listener));
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0 && is_rsocket(server));
    passes(client, server);
    CHECK(recv(server, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

/* IPv4 by sockets of IPv6, as in Java, whose sockets are all of this kind. */
static void mapping(void) {
    struct sockaddr_in6 name = {.sin6_family = AF_INET6}, seen;
    socklen_t length = sizeof name;
    name.sin6_addr.s6_addr[10] = name.sin6_addr.s6_addr[11] = 0xff;
    memcpy(&name.sin6_addr.s6_addr[12], &address.sin_addr, 4);
    int listener = socket(AF_INET6, SOCK_STREAM, 0), client = socket(AF_INET6, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 4) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&name, &length) == 0 && is_rsocket(listener));
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0 && is_rsocket(client));
    CHECK(getpeername(client, (struct sockaddr *)&seen, &length) == 0);
    CHECK(memcmp(&seen, &name, sizeof seen) == 0);
    int server = accept(listener, (struct sockaddr *)&seen, &length);
    CHECK(server >= 0 && memcmp(&seen.sin6_addr, &name.sin6_addr, sizeof seen.sin6_addr) == 0);
    passes(client, server);
}

/* Negative lengths are refused, a stream ignores addresses, and the first call after a failed attempt to connect reports
   its error. */
static void sending(void) {
    struct sockaddr_in name;
    struct ends ends = connected();
    char byte;
    int on = 1;
    socklen_t negative = -1;
    CHECK(setsockopt(ends.client, SOL_SOCKET, SO_KEEPALIVE, &on, negative) == -1 && errno == EINVAL);
    CHECK(getsockopt(ends.client, SOL_SOCKET, SO_KEEPALIVE, &on, &negative) == -1 && errno == EINVAL);
    CHECK(connect(ends.client, (struct sockaddr *)&address, negative) == -1 && errno == EINVAL);
    CHECK(sendto(ends.client, "x", 1, 0, (struct sockaddr *)&address, sizeof address) == 1);
    CHECK(recv(ends.server, &byte, 1, MSG_WAITALL) == 1);
    CHECK(close(listener_at(&name)) == 0);
    for (int call = 0; call < 2; call++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        struct pollfd asked = {fd, POLLOUT, 0};
        CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == -1 && errno == EINPROGRESS);
        CHECK(poll(&asked, 1, 20000) == 1);
        ssize_t done = call == 0 ? recv(fd, &byte, 1, 0) : send(fd, "x", 1, MSG_NOSIGNAL);
        CHECK(done == -1 && errno == ECONNREFUSED);
        int error = -1;
        socklen_t length = sizeof error;
        CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
    }
}

/* A descriptor table of its own would separate the thread from this library's threads. */
static void unsharing(void) {
    struct ends ends = connected();
    CHECK(close_range(3, ~0U, CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) == 0);
    CHECK(fcntl(ends.client, F_GETFD) == FD_CLOEXEC);
    passes(ends.client, ends.server);
    CHECK(close_range(3, ~0U, CLOSE_RANGE_UNSHARE) == 0);
    CHECK(fcntl(ends.client, F_GETFD) == -1 && errno == EBADF);
    ends = connected();
    passes(ends.client, ends.server);
}

/* Each call by its number. */
static void numbered(void) {
    struct ends ends = connected();
    struct sockaddr_in name = address;
    socklen_t length = sizeof name;
    struct pollfd asked = {ends.server, POLLIN, 0};
    struct timespec none = {0};
    struct timeval nothing = {0};
    fd_set reads;
    unsigned long mask = 0;
    struct {
        void *mask;
        size_t size;
    } masked = {&mask, sizeof mask};
    int number = 1;
    CHECK(syscall(SYS_write, ends.client, "x", 1) == 1 && arrived(ends.server));
    CHECK(syscall(SYS_ppoll, &asked, 1, &none, &mask, sizeof mask) == 1);
    FD_ZERO(&reads);
    FD_SET(ends.server, &reads);
    CHECK(syscall(SYS_pselect6, ends.server + 1, &reads, NULL, NULL, &none, &masked) == 1);
    CHECK(syscall(SYS_pselect6, ends.server + 1, &reads, NULL, NULL, &none, NULL) == 1);
#ifdef SYS_poll
    CHECK(syscall(SYS_poll, &asked, 1, 0) == 1);
    CHECK(syscall(SYS_select, ends.server + 1, &reads, NULL, NULL, &nothing) == 1);
#endif
    CHECK(syscall(SYS_setsockopt, ends.client, IPPROTO_TCP, TCP_NODELAY, &number, sizeof number) == 0);
    number = 0;
    CHECK(syscall(SYS_getsockopt, ends.client, IPPROTO_TCP, TCP_NODELAY, &number, &length) == 0 && number == 1);
    CHECK(syscall(SYS_getsockname, ends.server, &name, &length) == 0 && name.sin_family == AF_INET);
    CHECK(syscall(SYS_getpeername, ends.server, &name, &length) == 0 && name.sin_family == AF_INET);
    CHECK(syscall(SYS_ioctl, ends.server, FIONREAD, &number) == 0 && number == 1);
    CHECK(syscall(SYS_sendfile, ends.client, -1, NULL, 1) == -1 && errno == EBADF);
    CHECK(syscall(SYS_shutdown, ends.client, SHUT_WR) == 0);
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    length = sizeof name;
    name = address;
    CHECK(syscall(SYS_bind, listener, &name, length) == 0 && syscall(SYS_listen, listener, 1) == 0);
    CHECK(syscall(SYS_getsockname, listener, &name, &length) == 0 && name.sin_port != 0);
    CHECK(syscall(SYS_connect, client, &name, length) == 0 && is_rsocket(client));
    CHECK(syscall(SYS_accept, listener, NULL, NULL) > 0);
}

/* The kernel lets one connection more than the backlog wait, and takes a negative one for the maximum. */
static void waiting_to_be_accepted(void) {
    for (int backlog = 3; backlog >= -1; backlog--) {
        struct sockaddr_in name;
        int listener = socket(AF_INET, SOCK_STREAM, 0), clients[4], count = backlog < 0 ? 4 : backlog + 1;
        socklen_t length = sizeof name;
        name = address;
        CHECK(bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, backlog) == 0);
        CHECK(getsockname(listener, (struct sockaddr *)&name, &length) == 0);
        for (int i = 0; i < count; i++) {
            clients[i] = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(connect(clients[i], (struct sockaddr *)&name, sizeof name) == 0);
        }
        for (int i = 0; i < count; i++)
            CHECK(accept(listener, NULL, NULL) >= 0 && close(clients[i]) == 0);
        CHECK(close(listener) == 0);
    }
}

/* A descriptor of another process has no connection. */
static void passing(void) {
    struct ends ends = connected();
    int local[2], plain = dup(0), fds[2] = {plain, ends.client};
    char byte = 0, control[CMSG_SPACE(sizeof fds)] = {0};
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, local) == 0);
    for (int count = 1; count <= 2; count++) {
        message.msg_controllen = CMSG_SPACE(count * sizeof *fds);
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        *rights = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof *fds), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(rights), fds, count * sizeof *fds);
        ssize_t sent = sendmsg(local[0], &message, 0);
        CHECK(count == 1 ? sent == 1 : sent == -1 && errno == EOPNOTSUPP);
    }
    passes(ends.client, ends.server);
}

static int above(int fd) {
    int high = fcntl(fd, F_DUPFD, 100);
    CHECK(high >= 100 && close(fd) == 0);
    return high;
}

/* A program without standard streams opens them again by their numbers, and closes each number that it does not use. */
static void without_standard_streams(void) {
    int out = fcntl(1, F_DUPFD, 100), null = above(open("/dev/null", O_RDWR));
    CHECK(out >= 0 && close(0) == 0 && close(1) == 0 && close(2) == 0);
    struct ends ends = connected();
    int client = above(ends.client), server = above(ends.server);
    for (int fd = 0; fd < 3; fd++)
        CHECK(dup2(null, fd) == fd);
    for (int fd = 3; fd < 100; fd++)
        close(fd);
    char name[] = "/tmp/unwritten-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0);
    passes(client, server);
    passes(server, client);
    CHECK(lseek(file, 0, SEEK_END) == 0 && unlink(name) == 0);
    CHECK(dup2(out, 1) == 1);
}

static const struct part parts[] = {
    {"discarding", discarding}, {"selecting", selecting}, {"accepting", accepting_with_few_descriptors},
    {"mapping", mapping},       {"sending", sending},     {"unsharing", unsharing},
    {"passing", passing},     {"numbered", numbered},   {"waiting", waiting_to_be_accepted},
    {"standard", without_standard_streams},
};

int main(int argc, char **argv) {
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
