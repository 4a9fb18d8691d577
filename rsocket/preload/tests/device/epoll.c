/* Uses of an epoll with rsockets, each checked against the manual. The
   first argument is a part of this program, the second an address of this host. */

#define _GNU_SOURCE
#define _FORTIFY_SOURCE 2
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <sys/wait.h>
#include <netinet/tcp.h>

#include "calls.h"

enum { TEST_TIMEOUT = 20000, BRIEF = 50 };

static int set_with(int fd, uint32_t events) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = events, .data.fd = fd};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

/* The next event of a set, or 0 after a time-out. */
static uint32_t next_event(int set, int millis) {
    struct epoll_event event;
    int ready = epoll_wait(set, &event, 1, millis);
    CHECK(ready >= 0);
    return ready > 0 ? event.events : 0;
}

static void nonblocking(int fd) {
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
}

static void drain(int fd) {
    char bytes[4096];
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    CHECK(errno == EAGAIN);
}

/* As mio has it: registers by a duplicate, and waits on the first. */
static void duplicates(void) {
    struct ends ends = connected();
    int set = epoll_create1(EPOLL_CLOEXEC), twin = fcntl(set, F_DUPFD_CLOEXEC, 3);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = ends.client};
    CHECK(epoll_ctl(twin, EPOLL_CTL_ADD, ends.client, &event) == 0);
    CHECK(next_event(set, 0) == 0 && next_event(twin, 0) == 0);
    CHECK(write(ends.server, "x", 1) == 1);
    CHECK(next_event(set, TEST_TIMEOUT) == EPOLLIN && next_event(twin, TEST_TIMEOUT) == EPOLLIN);
    close(twin);
    drain(ends.client);
    CHECK(next_event(set, 0) == 0 && write(ends.server, "x", 1) == 1 && next_event(set, TEST_TIMEOUT) == EPOLLIN);
}

/* No event, after at most one that was on its way. */
static int is_quiet(int set) {
    return next_event(set, BRIEF) == 0 || next_event(set, BRIEF) == 0;
}

static void nested(void) {
    struct ends ends = connected();
    int inner = set_with(ends.client, EPOLLIN), outer = set_with(inner, EPOLLIN);
    int edges = set_with(inner, EPOLLIN | EPOLLET);
    struct pollfd asked[] = {{inner, POLLIN, 0}, {ends.server, POLLIN, 0}};
    fd_set read_set;
    struct timeval nothing = {0}, limit = {TEST_TIMEOUT / 1000, 0};
    FD_ZERO(&read_set);
    FD_SET(inner, &read_set);
    CHECK(next_event(outer, BRIEF) == 0 && poll(asked, 1, 0) == 0 && poll(asked, 2, 0) == 0);
    CHECK(select(inner + 1, &read_set, NULL, NULL, &nothing) == 0);
    CHECK(write(ends.server, "x", 1) == 1);
    CHECK(next_event(outer, TEST_TIMEOUT) == EPOLLIN && next_event(edges, TEST_TIMEOUT) == EPOLLIN);
    CHECK(is_quiet(edges));
    CHECK(poll(asked, 1, TEST_TIMEOUT) == 1 && asked[0].revents == POLLIN);
    CHECK(poll(asked, 2, TEST_TIMEOUT) == 1 && asked[0].revents == POLLIN && asked[1].revents == 0);
    FD_SET(inner, &read_set);
    CHECK(select(inner + 1, &read_set, NULL, NULL, &limit) == 1);
    drain(ends.client);
    CHECK(next_event(outer, BRIEF) == 0 && poll(asked, 1, 0) == 0);
}

/* Whether an edge reports data, after at most one that reports only room and was on its way. */
static int next_data(int set) {
    uint32_t event = next_event(set, TEST_TIMEOUT);
    return (event & EPOLLIN) || (event && (next_event(set, TEST_TIMEOUT) & EPOLLIN));
}

/* One edge for each change, and none while nothing happens. */
static void edges(void) {
    struct ends ends = connected();
    nonblocking(ends.client);
    int set = set_with(ends.client, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    CHECK(next_event(set, TEST_TIMEOUT) == EPOLLOUT);
    CHECK(is_quiet(set));
    for (int round = 0; round < 50; round++) {
        /* Unread data causes no event; new data causes the next one. */
        CHECK(write(ends.server, "ab", 2) == 2 && next_data(set));
        char byte;
        CHECK(read(ends.client, &byte, 1) == 1);
        CHECK(write(ends.server, "c", 1) == 1 && next_data(set));
        /* After a short read, no data is left: tokio and nginx wait then. */
        char more[10];
        for (ssize_t left = 2, got; left > 0; left -= got) {
            got = read(ends.client, more, sizeof more);
            CHECK(got > 0);
            /* The edge may have preceded the second byte, which then has its own. */
            CHECK(got == left || next_data(set));
        }
    }
    /* Room after a write that was short of it. The library's own buffer is the first to have some again. */
    static char much[1 << 16];
    ssize_t sent, total = 0;
    do {
        while ((sent = write(ends.client, much, sizeof much)) > 0)
            total += sent;
        CHECK(errno == EAGAIN);
    } while (next_event(set, BRIEF));
    while (total > 0) {
        ssize_t got = read(ends.server, much, sizeof much);
        CHECK(got > 0);
        total -= got;
    }
    CHECK(next_event(set, TEST_TIMEOUT) & EPOLLOUT);
    CHECK(write(ends.client, much, 1) == 1);
    CHECK(shutdown(ends.server, SHUT_WR) == 0);
    uint32_t end;
    do
        CHECK((end = next_event(set, TEST_TIMEOUT)) != 0);
    while (!(end & EPOLLRDHUP));
    CHECK((end & EPOLLIN) && !(end & EPOLLHUP));
    CHECK(read(ends.client, much, 1) == 0);
    CHECK(is_quiet(set));
}

static void ends_of_streams(void) {
    struct ends ends = connected();
    int set = set_with(ends.client, EPOLLIN | EPOLLRDHUP);
    struct pollfd asked = {ends.client, POLLIN | POLLRDHUP, 0};
    CHECK(poll(&asked, 1, 0) == 0);
    CHECK(shutdown(ends.server, SHUT_WR) == 0);
    CHECK(next_event(set, TEST_TIMEOUT) == (EPOLLIN | EPOLLRDHUP));
    CHECK(poll(&asked, 1, TEST_TIMEOUT) == 1 && asked.revents == (POLLIN | POLLRDHUP));
    asked.events = POLLRDHUP;
    CHECK(poll(&asked, 1, TEST_TIMEOUT) == 1 && asked.revents == POLLRDHUP);
    CHECK(shutdown(ends.client, SHUT_WR) == 0);
    uint32_t end;
    do
        CHECK((end = next_event(set, TEST_TIMEOUT)) != 0);
    while (!(end & EPOLLHUP));
    /* One that is closed leaves the set. */
    CHECK(close(ends.client) == 0 && next_event(set, BRIEF) == 0);
}

/* A connection that fails, and a listener. */
static void beginnings(void) {
    struct sockaddr_in name;
    int listener = listener_at(&name), error = 0;
    nonblocking(listener);
    socklen_t length = sizeof error;
    int early = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), clients = set_with(early, EPOLLIN | EPOLLOUT | EPOLLET);
    int arrivals = set_with(listener, EPOLLIN | EPOLLET);
    CHECK(next_event(arrivals, BRIEF) == 0);
    CHECK(connect(early, (struct sockaddr *)&name, sizeof name) == -1 && errno == EINPROGRESS);
    CHECK(next_event(arrivals, TEST_TIMEOUT) == EPOLLIN);
    CHECK(accept(listener, NULL, NULL) >= 0 && accept(listener, NULL, NULL) == -1);
    uint32_t done;
    do
        CHECK((done = next_event(clients, TEST_TIMEOUT)) != 0);
    while (!(done & EPOLLOUT));
    CHECK(!(done & (EPOLLERR | EPOLLIN)));
    CHECK(getsockopt(early, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
    close(listener);
    int refused = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), set;
    CHECK(connect(refused, (struct sockaddr *)&name, sizeof name) == -1 && errno == EINPROGRESS);
    set = set_with(refused, EPOLLOUT);
    /* The error comes first, and the end with it, or at once after it. */
    do
        CHECK((done = next_event(set, TEST_TIMEOUT)) & EPOLLERR);
    while (!(done & EPOLLHUP));
    CHECK(getsockopt(refused, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == ECONNREFUSED);
    CHECK(!(next_event(set, 0) & EPOLLERR));
}

/* Listeners. */
static void *shut_down(void *listener) {
    usleep(100000);
    CHECK(shutdown(*(int *)listener, SHUT_RDWR) == 0);
    return NULL;
}

static void listeners(void) {
    struct sockaddr_in name = {.sin_family = AF_INET}, again;
    socklen_t length = sizeof name;
    int on = 1;
    /* A port of all addresses has one listener only, however it is asked for. */
    for (int any_first = 0; any_first < 2; any_first++) {
        int fds[2];
        for (int side = 0; side < 2; side++) {
            fds[side] = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(setsockopt(fds[side], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
        }
        name.sin_port = 0;
        name.sin_addr.s_addr = any_first ? INADDR_ANY : address.sin_addr.s_addr;
        CHECK(bind(fds[0], (struct sockaddr *)&name, sizeof name) == 0 && listen(fds[0], 4) == 0);
        CHECK(getsockname(fds[0], (struct sockaddr *)&name, &length) == 0);
        for (int any = 0; any < 2; any++) {
            if (!any_first && !any)
                continue;
            again = name;
            again.sin_addr.s_addr = any ? INADDR_ANY : address.sin_addr.s_addr;
            int second = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(setsockopt(second, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
            int taken = bind(second, (struct sockaddr *)&again, sizeof again) ? -1 : listen(second, 4);
            CHECK(taken == -1 && errno == EADDRINUSE);
            CHECK(is_rsocket(second) && close(second) == 0);
            second = socket(AF_INET, SOCK_STREAM, 0);
            taken = bind(second, (struct sockaddr *)&again, sizeof again) ? -1 : listen(second, 4);
            CHECK(taken == -1 && errno == EADDRINUSE);
            CHECK(is_rsocket(second) && close(second) == 0);
        }
        CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
    }
    /* A thread waiting for a connection gets an event of the shutdown. */
    int listener = listener_at(&name), set = set_with(listener, EPOLLIN | EPOLLRDHUP);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, shut_down, &listener) == 0);
    CHECK(accept(listener, NULL, NULL) == -1 && errno == EINVAL);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(next_event(set, TEST_TIMEOUT) & EPOLLIN);
    struct pollfd asked = {listener, POLLIN, 0};
    CHECK(poll(&asked, 1, TEST_TIMEOUT) == 1 && (asked.revents & POLLHUP));
    int late = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(late, (struct sockaddr *)&name, sizeof name) == -1);
    asked = (struct pollfd){late, POLLOUT, 0};
    CHECK(poll(&asked, 1, TEST_TIMEOUT) == 1);
    CHECK(getsockopt(late, SOL_SOCKET, SO_ERROR, &on, &length) == 0 && on == ECONNREFUSED);
    /* Clients of IPv4 have mapped addresses where a socket is for IPv6. */
    struct sockaddr_in6 six = {.sin6_family = AF_INET6}, seen;
    int any = socket(AF_INET6, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(any, (struct sockaddr *)&six, sizeof six) == 0 && listen(any, 4) == 0);
    length = sizeof six;
    CHECK(getsockname(any, (struct sockaddr *)&six, &length) == 0 && six.sin6_family == AF_INET6);
    name = address;
    name.sin_port = six.sin6_port;
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    length = sizeof seen;
    int server = accept(any, (struct sockaddr *)&seen, &length);
    CHECK(server >= 0 && length == sizeof seen && IN6_IS_ADDR_V4MAPPED(&seen.sin6_addr));
    length = sizeof seen;
    CHECK(getsockname(server, (struct sockaddr *)&seen, &length) == 0 && length == sizeof seen);
    CHECK(IN6_IS_ADDR_V4MAPPED(&seen.sin6_addr) && seen.sin6_port == six.sin6_port);
    length = sizeof seen;
    CHECK(getpeername(server, (struct sockaddr *)&seen, &length) == 0 && length == sizeof seen);
    /* Both directions that are shut down are the end, at once. */
    asked = (struct pollfd){client, POLLIN, 0};
    CHECK(shutdown(client, SHUT_RDWR) == 0);
    CHECK(poll(&asked, 1, 0) == 1 && (asked.revents & POLLHUP));
}

static void variants(void) {
    struct ends ends = connected();
    struct timespec limit = {TEST_TIMEOUT / 1000, 0}, nothing = {0};
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = 7}, events[2];
    int set = set_with(ends.client, EPOLLIN | EPOLLONESHOT), exclusive = set_with(ends.client, EPOLLIN | EPOLLEXCLUSIVE);
    CHECK(epoll_pwait2(set, events, 2, &nothing, NULL) == 0);
    CHECK(write(ends.server, "x", 1) == 1);
    CHECK(epoll_pwait2(set, events, 2, &limit, NULL) == 1 && events[0].events == EPOLLIN);
    CHECK(next_event(set, BRIEF) == 0 && next_event(exclusive, TEST_TIMEOUT) == EPOLLIN);
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, ends.client, &event) == 0 && next_event(set, TEST_TIMEOUT) == EPOLLIN);
    /* Another process waits by the same set. */
    drain(ends.client);
    set = set_with(ends.client, EPOLLIN);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(next_event(set, TEST_TIMEOUT) == EPOLLIN ? 0 : 1);
    int status;
    CHECK(write(ends.server, "x", 1) == 1);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* With a known size of the array, the C library has functions of their own. */
    volatile nfds_t one = 1;
    struct pollfd asked[1] = {{ends.client, POLLIN, 0}};
    CHECK(ppoll(asked, one, &limit, NULL) == 1 && asked[0].revents == POLLIN);
    CHECK(poll(asked, one, TEST_TIMEOUT) == 1);
}

/* Blocking calls and polls agree with the events of an epoll. */
static void levels(void) {
    struct ends ends = connected();
    int set = set_with(ends.client, EPOLLIN | EPOLLOUT);
    char bytes[4];
    CHECK(next_event(set, TEST_TIMEOUT) == EPOLLOUT);
    for (int round = 0; round < 200; round++) {
        struct pollfd asked = {ends.client, POLLIN, 0};
        CHECK(write(ends.server, "abcd", 4) == 4);
        CHECK(poll(&asked, 1, TEST_TIMEOUT) == 1);
        CHECK(next_event(set, 0) == (EPOLLIN | EPOLLOUT));
        CHECK(recv(ends.client, bytes, sizeof bytes, MSG_WAITALL) == 4);
        CHECK(next_event(set, 0) == EPOLLOUT);
    }
}

static void files(void) {
    struct ends ends = connected();
    struct stat stat;
    char link[64] = {0}, path[64];
    CHECK(fstat(ends.client, &stat) == 0 && S_ISSOCK(stat.st_mode));
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends.client);
    CHECK(readlink(path, link, sizeof link - 1) > 0 && strncmp(link, "socket:", 7) == 0);
    /* A write not intercepted by the library fails. */
    CHECK(raw(SYS_write, ends.client, (long)"x", 1, 0, 0, 0) == -1);
}

/* A datagram socket in a set. */
static void datagrams(void) {
    struct sockaddr_in name = address;
    socklen_t length = sizeof name;
    int server = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), client = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(server, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK(getsockname(server, (struct sockaddr *)&name, &length) == 0);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    int set = set_with(server, EPOLLIN | EPOLLET);
    for (int round = 0; round < 20; round++) {
        char bytes[8];
        CHECK(next_event(set, 0) == 0 && write(client, "x", 1) == 1 && next_event(set, TEST_TIMEOUT) == EPOLLIN);
        CHECK(read(server, bytes, sizeof bytes) == 1 && read(server, bytes, sizeof bytes) == -1);
    }
}

static const struct part parts[] = {
    {"duplicates", duplicates}, {"nested", nested},     {"edges", edges},
    {"ends", ends_of_streams},  {"beginnings", beginnings}, {"variants", variants},
    {"listeners", listeners},   {"levels", levels},         {"files", files},       {"datagrams", datagrams},
};

int main(int argc, char **argv) {
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
