/* Calls on an rsocket that the library does not intercept, and calls through a FILE. The
   first argument is a part of this program, the second an address of this host. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "calls.h"

enum { TEST_TIMEOUT = 20000 };

static int set_with(int fd) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

/* Waits for each of some events of a descriptor in a set. */
static void await(int set, int fd, uint32_t wanted) {
    static const uint32_t all[] = {EPOLLIN, EPOLLOUT, EPOLLHUP};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct epoll_event event = {.events = all[i]};
        if (!(wanted & all[i]))
            continue;
        CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
        CHECK(epoll_wait(set, &event, 1, TEST_TIMEOUT) == 1 && (event.events & all[i]));
    }
}

static void refused(long result) {
    CHECK(result == -1 && (errno == ENOTCONN || errno == EPIPE || errno == ECONNRESET));
}

/* Each call that writes to a socket past the C library's functions for that. */
static void write_unseen(int fd) {
    int pipes[2], file = open("/etc/hosts", O_RDONLY | O_CLOEXEC);
    struct iovec piece = {"lost", 4};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    CHECK(file >= 0 && pipe(pipes) == 0 && write(pipes[1], "lost", 4) == 4);
    refused(raw(SYS_write, fd, (long)"lost", 4, 0, 0, 0));
    refused(raw(SYS_writev, fd, (long)&piece, 1, 0, 0, 0));
    refused(raw(SYS_pwritev2, fd, (long)&piece, 1, -1, -1, 0));
    refused(raw(SYS_sendto, fd, (long)"lost", 4, MSG_NOSIGNAL, 0, 0));
    refused(raw(SYS_sendmsg, fd, (long)&message, MSG_NOSIGNAL, 0, 0, 0));
    refused(raw(SYS_sendfile, fd, file, 0, 10, 0, 0));
    refused(raw(SYS_splice, pipes[0], 0, fd, 0, 4, 0));
    CHECK(splice(pipes[0], NULL, fd, NULL, 4, 0) == -1 && errno == EINVAL);
    refused(dprintf(fd, "lost"));
    CHECK(close(file) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

/* Each write fails, in each state of the socket. */
static void writes(void) {
    struct ends ends = connected();
    char byte;
    write_unseen(ends.client);
    int set = set_with(ends.client);
    await(set, ends.client, EPOLLOUT);
    write_unseen(ends.client);
    CHECK(write(ends.server, "x", 1) == 1);
    await(set, ends.client, EPOLLIN | EPOLLOUT);
    write_unseen(ends.client);
    passes(ends.client, ends.server);
    CHECK(shutdown(ends.server, SHUT_WR) == 0 && read(ends.client, &byte, 1) == 1);
    await(set, ends.client, EPOLLIN);
    write_unseen(ends.client);
    passes(ends.client, ends.server);
    CHECK(shutdown(ends.client, SHUT_WR) == 0);
    await(set, ends.client, EPOLLHUP);
    write_unseen(ends.client);
    int datagrams = socket(AF_INET, SOCK_DGRAM, 0), other = set_with(datagrams);
    CHECK(bind(datagrams, (struct sockaddr *)&address, sizeof address) == 0);
    await(other, datagrams, EPOLLOUT);
    write_unseen(datagrams);
}

/* A direct read returning a false end is reported at close. */
static void reads(void) {
    struct ends ends = connected();
    char bytes[4];
    CHECK(raw(SYS_read, ends.client, (long)bytes, 4, 0, 0, 0) == -1 && errno == EAGAIN);
    int set = set_with(ends.client);
    CHECK(raw(SYS_read, ends.client, (long)bytes, 4, 0, 0, 0) == -1 && errno == EAGAIN);
    CHECK(write(ends.server, "data", 4) == 4);
    await(set, ends.client, EPOLLIN);
    CHECK(raw(SYS_read, ends.client, (long)bytes, 4, 0, 0, 0) == 0);
    CHECK(read(ends.client, bytes, 4) == 4 && memcmp(bytes, "data", 4) == 0);
    CHECK(close(ends.client) == 0);
}

/* A FILE of a socket, as servers make them with fdopen. */
static void stdio(void) {
    struct ends ends = connected();
    int twin = dup(ends.server), set = set_with(ends.client);
    FILE *client = fdopen(ends.client, "r+"), *out = fdopen(ends.server, "w"), *in = fdopen(twin, "r");
    char line[64], *much = NULL;
    size_t room = 0;
    CHECK(client && out && in);
    CHECK(fileno(client) == ends.client && fileno(out) == ends.server && fileno_unlocked(in) == twin);
    for (int round = 0; round < 100; round++) {
        CHECK(fprintf(client, "GET /%d\n", round) > 0 && fflush(client) == 0);
        CHECK(fgets(line, sizeof line, in) && atoi(line + 5) == round);
        CHECK(fprintf(out, "found %s", line) > 0 && fflush(out) == 0);
        CHECK(getline(&much, &room, client) > 0 && strncmp(much, "found GET /", 11) == 0);
    }
    enum { SIZE = 1 << 20 };
    /* An error, and more than fits into a buffer of the C library's. */
    int flags = fcntl(twin, F_GETFL);
    CHECK(fcntl(twin, F_SETFL, flags | O_NONBLOCK) == 0 && fgetc(in) == EOF && ferror(in) && errno == EAGAIN);
    clearerr(in);
    CHECK(fcntl(twin, F_SETFL, flags) == 0);
    for (int round = 0; round < 16; round++) {
        static char block[SIZE / 16], back[SIZE / 16];
        memset(block, 'a' + round, sizeof block);
        CHECK(fwrite(block, 1, sizeof block / 2, client) == sizeof block / 2 && fflush(client) == 0);
        CHECK(fread(back, 1, sizeof back / 2, in) == sizeof back / 2);
        CHECK(memcmp(block, back, sizeof back / 2) == 0);
    }
    CHECK(fseek(client, 0, SEEK_CUR) == -1);
    CHECK(fprintf(out, "bye") == 3 && fclose(out) == 0 && fclose(in) == 0);
    CHECK(fcntl(ends.server, F_GETFD) == -1 && errno == EBADF && fcntl(twin, F_GETFD) == -1);
    CHECK(fgets(line, sizeof line, client) && strcmp(line, "bye") == 0);
    CHECK(fgets(line, sizeof line, client) == NULL && feof(client) && !ferror(client));
    await(set, ends.client, EPOLLIN);
    CHECK(fprintf(client, "after shutdown") > 0 && fflush(client) == EOF && ferror(client));
    fclose(client);
    free(much);
}

/* A file of another kind is the C library's, also at the address of a former one of a socket. */
static void stdio_reused(void) {
    enum { COUNT = 20 };
    struct ends ends = connected();
    FILE *files[COUNT];
    for (int i = 0; i < COUNT; i++)
        CHECK((files[i] = fdopen(dup(ends.client), "r+")) != NULL);
    for (int i = 0; i < COUNT; i++)
        CHECK(fclose(files[i]) == 0);
    for (int i = 0; i < COUNT; i++) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        CHECK((files[i] = fdopen(null, "r+")) != NULL);
        CHECK(fileno(files[i]) == null && fileno_unlocked(files[i]) == null);
    }
    for (int i = 0; i < COUNT; i++)
        CHECK(fputs("x", files[i]) >= 0 && fclose(files[i]) == 0);
    passes(ends.client, ends.server);
}

static volatile sig_atomic_t rung;

static void ring(int signal) {
    (void)signal;
    rung = 1;
}

enum { LONG = 4 << 20 };

/* Reads once the signal has come. */
static void *read_late(void *from) {
    static char bytes[LONG];
    size_t got = 0;
    while (!rung)
        usleep(1000);
    while (got < sizeof bytes) {
        ssize_t some = read(*(int *)from, bytes + got, sizeof bytes - got);
        CHECK(some > 0);
        got += some;
    }
    for (size_t i = 0; i < sizeof bytes; i++)
        CHECK(bytes[i] == (char)(i % 251));
    return NULL;
}

/* A signal ends a write early, and the rest of the bytes of a FILE are still written. */
static void stdio_interrupted(void) {
    static char bytes[LONG];
    struct ends ends = connected();
    struct sigaction action = {.sa_handler = ring};
    struct itimerval soon = {.it_value.tv_usec = 300000};
    sigset_t alarms;
    pthread_t reader;
    FILE *out = fdopen(ends.client, "w");
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i % 251);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    CHECK(out && sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0);
    CHECK(pthread_create(&reader, NULL, read_late, &ends.server) == 0);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL) == 0);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    CHECK(fwrite(bytes, 1, sizeof bytes, out) == sizeof bytes && fflush(out) == 0);
    CHECK(pthread_join(reader, NULL) == 0 && fclose(out) == 0);
}

/* Several datagrams by one call. */
static void many(void) {
    struct sockaddr_in name = address;
    socklen_t length = sizeof name;
    int server = socket(AF_INET, SOCK_DGRAM, 0), client = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(server, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK(getsockname(server, (struct sockaddr *)&name, &length) == 0);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0 && is_rsocket(client) && is_rsocket(server));
    char out[] = "abbccc", in[5][8];
    struct iovec from[] = {{out, 1}, {out + 1, 2}, {out + 3, 3}}, to[5];
    struct mmsghdr sent[3], got[5];
    memset(sent, 0, sizeof sent);
    memset(got, 0, sizeof got);
    for (int i = 0; i < 3; i++)
        sent[i].msg_hdr = (struct msghdr){.msg_iov = from + i, .msg_iovlen = 1};
    for (int i = 0; i < 5; i++) {
        to[i] = (struct iovec){in[i], sizeof in[i]};
        got[i].msg_hdr = (struct msghdr){.msg_iov = to + i, .msg_iovlen = 1};
    }
    CHECK(recvmmsg(server, got, 5, MSG_DONTWAIT, NULL) == -1 && errno == EAGAIN);
    for (int round = 0; round < 20; round++) {
        CHECK(sendmmsg(client, sent, 3, 0) == 3);
        CHECK(sent[0].msg_len == 1 && sent[1].msg_len == 2 && sent[2].msg_len == 3);
        int count = 0;
        while (count < 3) {
            int some = recvmmsg(server, got + count, 5 - count, MSG_WAITFORONE, NULL);
            CHECK(some > 0);
            count += some;
        }
        CHECK(count == 3 && got[0].msg_len == 1 && got[1].msg_len == 2 && got[2].msg_len == 3);
        CHECK(memcmp(in[2], "ccc", 3) == 0);
    }
    /* The time counts after each message. */
    struct timespec nothing = {0};
    CHECK(sendmmsg(client, sent, 3, 0) == 3 && recvmmsg(server, got, 3, 0, &nothing) == 1);
    CHECK(sendmmsg(client, sent, 0, 0) == 0);
    /* The other two may still be on their way. */
    CHECK(recvmmsg(server, got, 2, 0, NULL) == 2);
    CHECK(syscall(SYS_sendmmsg, client, sent, 1, 0) == 1);
    memset(in[0], 0, sizeof in[0]);
    CHECK(syscall(SYS_recvmmsg, server, got, 1, 0, NULL) == 1 && got[0].msg_len == 1 && in[0][0] == 'a');
    /* A socket of the kernel's is as before. */
    int plain = socket(AF_UNIX, SOCK_DGRAM, 0);
    CHECK(sendmmsg(plain, sent, 3, 0) == -1 && errno == ENOTCONN);
}

/* Calls by number behave like those by name; libuv closes by number. */
static void numbered(void) {
    struct ends ends = connected();
    char bytes[8], *odd = bytes + 1;
    struct iovec out[] = {{"ab", 2}, {"cd", 2}}, in = {bytes, 4};
    struct msghdr sent = {.msg_iov = out, .msg_iovlen = 2}, got = {.msg_iov = &in, .msg_iovlen = 1};
    CHECK(syscall(SYS_write, ends.client, "abcd", 4) == 4);
    CHECK(syscall(SYS_read, ends.server, bytes, 4) == 4 && memcmp(bytes, "abcd", 4) == 0);
    CHECK(syscall(SYS_writev, ends.client, out, 2) == 4 && syscall(SYS_readv, ends.server, &in, 1) == 4);
    CHECK(syscall(SYS_sendto, ends.client, "abcd", 4, MSG_NOSIGNAL, NULL, 0) == 4);
    CHECK(syscall(SYS_recvfrom, ends.server, bytes, 4, MSG_WAITALL, NULL, NULL) == 4);
    CHECK(syscall(SYS_sendmsg, ends.client, &sent, 0) == 4 && syscall(SYS_recvmsg, ends.server, &got, MSG_WAITALL) == 4);
    CHECK(syscall(SYS_read, ends.server, bytes, (size_t)-1) == -1 && errno == EINVAL);
    CHECK(syscall(SYS_getpid) == getpid() && syscall(SYS_close, 12345) == -1 && errno == EBADF);
    /* Numbers at odd addresses, as Python has them. */
    int unread = 0;
    CHECK(write(ends.client, "xyz", 3) == 3 && recv(ends.server, bytes, 3, MSG_PEEK | MSG_WAITALL) > 0);
    struct pollfd asked = {ends.server, POLLIN, 0};
    do
        CHECK(poll(&asked, 1, TEST_TIMEOUT) == 1 && ioctl(ends.server, FIONREAD, odd) == 0);
    while (memcpy(&unread, odd, sizeof unread) && unread < 3);
    CHECK(unread == 3);
    int twin = syscall(SYS_dup, ends.client), other = syscall(SYS_dup3, ends.client, 300, O_CLOEXEC);
    int third = syscall(SYS_fcntl, ends.client, F_DUPFD_CLOEXEC, 310);
    CHECK(twin > 0 && other == 300 && third >= 310 && syscall(SYS_close, ends.client) == 0);
    CHECK(write(other, "abcd", 4) == 4 && recv(ends.server, bytes, 7, MSG_WAITALL) == 7);
    CHECK(syscall(SYS_close, twin) == 0 && syscall(SYS_close, third) == 0);
    CHECK(syscall(SYS_close_range, 300, 300, 0) == 0);
    CHECK(read(ends.server, bytes, 1) == 0 && syscall(SYS_close, ends.server) == 0);
    /* The next descriptors with these numbers are no rsockets. */
    for (int i = 0; i < 40; i++) {
        int pipes[2];
        CHECK(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1 && read(pipes[0], bytes, 1) == 1);
        ends = connected();
        passes(ends.client, ends.server);
        CHECK(syscall(SYS_close, ends.client) == 0 && read(ends.server, bytes, 1) == 0);
        CHECK(syscall(SYS_close, ends.server) == 0);
    }
}

/* Calls by number that make, watch, end and replace sockets. */
static void numbered_places(void) {
    struct sockaddr_in name, peer;
    socklen_t length = sizeof peer;
    int listener = listener_at(&name), client = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0), pipes[2];
    struct epoll_event event = {.events = EPOLLIN};
    char bytes[4];
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0 && pipe(pipes) == 0);
    int server = syscall(SYS_accept4, listener, &peer, &length, SOCK_CLOEXEC);
    CHECK(server >= 0 && is_rsocket(server) && fcntl(server, F_GETFD) == FD_CLOEXEC);
    CHECK(length == sizeof peer && peer.sin_addr.s_addr == address.sin_addr.s_addr);
    /* The kernel uses the lower half of a register. */
    CHECK(syscall(SYS_write, 1L << 32 | client, "abc", 3) == 3 && recv(server, bytes, 3, MSG_WAITALL) == 3);
    CHECK(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, server, &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 100) == 0);
    CHECK(write(client, "x", 1) == 1 && epoll_wait(set, &event, 1, TEST_TIMEOUT) == 1 && read(server, bytes, 1) == 1);
    CHECK(syscall(SYS_shutdown, client, SHUT_WR) == 0 && read(server, bytes, 1) == 0);
    passes(server, client);
    /* What is duplicated to the number of a socket closes the socket. */
    struct ends ends = connected();
    CHECK(syscall(SYS_dup3, pipes[1], ends.client, O_CLOEXEC) == ends.client && read(ends.server, bytes, 1) == 0);
    CHECK(write(ends.client, "p", 1) == 1 && read(pipes[0], bytes, 1) == 1);
#ifdef SYS_dup2
    ends = connected();
    CHECK(syscall(SYS_dup2, ends.server, 320) == 320 && close(ends.server) == 0);
    passes(ends.client, 320);
    CHECK(syscall(SYS_dup2, pipes[1], 320) == 320 && read(ends.client, bytes, 1) == 0);
    CHECK(write(320, "p", 1) == 1 && read(pipes[0], bytes, 1) == 1);
#endif
}

/* With RDMAV_FORK_SAFE: the first use of a connection moves it. */
static void moved_by(void (*client)(int fd), void (*serve)(int fd)) {
    struct sockaddr_in name;
    int listener = listener_at(&name), status;
    alarm(100);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        alarm(100);
        CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == 0 && !is_rsocket(fd));
        client(fd);
        _exit(0);
    }
    int server = accept(listener, NULL, NULL);
    CHECK(server >= 0 && !is_rsocket(server));
    serve(server);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The calls of messages. */
static void serve_message(int fd) {
    char bytes[3];
    struct iovec piece = {bytes, 3};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}};
    CHECK(recvmmsg(fd, &message, 1, MSG_WAITALL, NULL) == 1 && message.msg_len == 3 && is_rsocket(fd));
    CHECK(memcmp(bytes, "ask", 3) == 0 && write(fd, "ok", 2) == 2);
}

static void await_answer(int fd) {
    char bytes[2];
    CHECK(is_rsocket(fd) && recv(fd, bytes, 2, MSG_WAITALL) == 2);
}

static void send_to(int fd) {
    CHECK(sendto(fd, "ask", 3, 0, NULL, 0) == 3);
    await_answer(fd);
}

static void send_message(int fd) {
    struct iovec piece = {"ask", 3};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    CHECK(sendmsg(fd, &message, 0) == 3);
    await_answer(fd);
}

static void send_messages(int fd) {
    struct iovec piece = {"ask", 3};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}};
    CHECK(sendmmsg(fd, &message, 1, 0) == 1 && message.msg_len == 3);
    await_answer(fd);
}

static void moved_by_sendto(void) { moved_by(send_to, serve_message); }

static void moved_by_sendmsg(void) { moved_by(send_message, serve_message); }

static void moved_by_sendmmsg(void) { moved_by(send_messages, serve_message); }

/* Through a FILE, and by number. */
static void use_file(int fd) {
    char bytes[8];
    FILE *file = fdopen(fd, "r+");
    CHECK(file && fileno(file) == fd && fputs("ask\n", file) >= 0 && fflush(file) == 0 && is_rsocket(fd));
    CHECK(fgets(bytes, sizeof bytes, file) && strcmp(bytes, "answer\n") == 0 && fclose(file) == 0);
}

static void serve_by_number(int fd) {
    char bytes[4];
    CHECK(syscall(SYS_recvfrom, fd, bytes, 4, MSG_WAITALL, NULL, NULL) == 4 && is_rsocket(fd));
    CHECK(memcmp(bytes, "ask\n", 4) == 0 && syscall(SYS_write, fd, "answer\n", 7) == 7);
}

static void moved_by_use(void) { moved_by(use_file, serve_by_number); }

static const struct part parts[] = {
    {"numbered", numbered}, {"numbered-places", numbered_places}, {"moved-by-use", moved_by_use},
    {"moved-by-sendto", moved_by_sendto}, {"moved-by-sendmsg", moved_by_sendmsg},
    {"moved-by-sendmmsg", moved_by_sendmmsg},
    {"writes", writes}, {"reads", reads}, {"many", many},
    {"stdio", stdio}, {"stdio-reused", stdio_reused}, {"stdio-interrupted", stdio_interrupted},
};

int main(int argc, char **argv) {
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
