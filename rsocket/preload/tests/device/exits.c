/* Ways in which a process ends without having closed its socket. The first argument is a way, the second an address,
   the third the port of a server there that reads to the end. The status is 7. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "calls.h"

enum { SIZE = 3000000, STATUS = 7 };

static unsigned char bytes[SIZE];
static int fd = -1;
static const char *late;

static size_t sent;

static void send_until(size_t end) {
    while (sent < end) {
        struct pollfd room = {fd, POLLOUT, 0};
        ssize_t more = write(fd, bytes + sent, end - sent);
        CHECK(more > 0 || (errno == EAGAIN && poll(&room, 1, -1) == 1));
        sent += more > 0 ? more : 0;
    }
}

static void send_all(void) {
    send_until(SIZE);
}

static void send_late(const char *from) {
    if (late && strcmp(late, from) == 0)
        send_all();
}

static void at_exit(void) {
    send_late("handler");
}

__attribute__((destructor)) static void destroy(void) {
    send_late("destructor");
}

/* Ends the process if the call returns: the end of the process must not reach other threads. */
static void *blocked_reader(void *unused) {
    char byte;
    ssize_t got = read(fd, &byte, 1);
    fprintf(stderr, "read returned %zd\n", got);
    _exit(1);
    return unused;
}

static void *exiting_thread(void *unused) {
    send_all();
    exit(STATUS);
    return unused;
}

static void send_rest(void *unused) {
    (void)unused;
    send_all();
}

/* More than the send buffer, so a call waits. */
static void *half_sending_thread(void *unused) {
    pthread_key_t key;
    CHECK(pthread_key_create(&key, send_rest) == 0 && pthread_setspecific(key, bytes) == 0);
    send_until(SIZE / 2);
    return unused;
}

static void start(void *(*run)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
}

static void on_signal(int signal) {
    (void)signal;
    _exit(STATUS);
}

static void wait_for(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void end(const char *way) {
    struct linger zero = {1, 0};
    struct sigaction action = {.sa_handler = on_signal};
    char byte;
    if (strcmp(way, "handler") == 0 || strcmp(way, "destructor") == 0) {
        late = way;
        CHECK(atexit(at_exit) == 0);
        exit(STATUS);
    }
    if (strcmp(way, "half-handler") == 0) {
        late = "handler";
        send_until(SIZE / 2);
        CHECK(atexit(at_exit) == 0);
        exit(STATUS);
    }
    if (strcmp(way, "half-destructor") == 0) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, half_sending_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
        exit(STATUS);
    }
    if (strcmp(way, "signal") == 0) {
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        ualarm(1000 + getpid() * 7919 % 30000, 0);
        for (size_t at = 0;; at = (at + 50) % SIZE)
            CHECK(write(fd, bytes + at, 50) == 50);
    }
    if (strcmp(way, "idle") == 0) {
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        send_all();
        ualarm(200000, 0);
        read(fd, &byte, 1);
        abort();
    }
    if (strcmp(way, "thread") == 0) {
        start(exiting_thread);
        read(fd, &byte, 1);
        abort();
    }
    if (strcmp(way, "stdio") == 0) {
        FILE *file = fdopen(fd, "r+");
        CHECK(file && setvbuf(file, NULL, _IOFBF, 2 * SIZE) == 0 && fwrite(bytes, SIZE, 1, file) == 1);
        exit(STATUS);
    }
    if (strcmp(way, "child") == 0) {
        pid_t child = fork();
        if (child == 0)
            exit(0);
        wait_for(child);
        child = vfork();
        if (child == 0)
            _exit(0);
        wait_for(child);
    }
    if (strcmp(way, "nonblocking") == 0 || strcmp(way, "closed") == 0)
        CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    if (strcmp(way, "blocked") == 0)
        start(blocked_reader);
    if (strcmp(way, "zero") == 0)
        CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &zero, sizeof zero) == 0);
    send_all();
    if (strcmp(way, "closed") == 0)
        CHECK(close(fd) == 0);
    if (strcmp(way, "shut") == 0)
        CHECK(shutdown(fd, SHUT_WR) == 0);
    if (strcmp(way, "_exit") == 0)
        _exit(STATUS);
    if (strcmp(way, "_Exit") == 0)
        _Exit(STATUS);
    if (strcmp(way, "quick_exit") == 0)
        quick_exit(STATUS);
    if (strcmp(way, "exit_group") == 0)
        syscall(SYS_exit_group, STATUS);
    if (strcmp(way, "kill") == 0)
        raise(SIGKILL);
    if (strcmp(way, "return") != 0)
        exit(STATUS);
}

/* With RDMAV_FORK_SAFE: the child moves its connection and exits without closing, the parent reads to the end. */
static int moved(void) {
    struct sockaddr_in name;
    int listener = listener_at(&name), status;
    unsigned char piece[4096];
    pid_t child = fork();
    alarm(100);
    if (child == 0) {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
        send_all();
        CHECK(is_rsocket(fd));
        exit(0);
    }
    int server = accept(listener, NULL, NULL);
    for (size_t got = 0; got < SIZE;) {
        ssize_t more = read(server, piece, sizeof piece);
        CHECK(more > 0 && memcmp(piece, bytes + got, more) == 0);
        got += more;
    }
    CHECK(is_rsocket(server) && read(server, piece, 1) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return STATUS;
}

int main(int argc, char **argv) {
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = i % 251;
    CHECK(argc >= 3 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
    if (strcmp(argv[1], "moved") == 0)
        return moved();
    CHECK(argc == 4);
    address.sin_port = htons(atoi(argv[3]));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 && is_rsocket(fd));
    end(argv[1]);
    return STATUS;
}
