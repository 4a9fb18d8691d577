/* Calls that programs make on RDS sockets, where threads or signals come in between. The first argument
   is a part of this program, the second an address of this host. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) check((condition), #condition, __LINE__)
#define RDS 21
#define SOL_RDS 276
#define RDS_CANCEL_SENT_TO 1
#define RDS_GET_MR 2
#define RDS_FREE_MR 3

static void check(int condition, const char *what, int line) {
    if (!condition) {
        fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
        exit(1);
    }
}

#include "../../../../interpose/tests/blocked.h"

static struct sockaddr_in address = {.sin_family = AF_INET};
/* Where nobody is. */
static struct sockaddr_in nowhere = {.sin_family = AF_INET};

static int bound_to(int port) {
    int fd = socket(RDS, SOCK_SEQPACKET, 0);
    CHECK(fd >= 0);
    address.sin_port = htons(port);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* Sends one byte to the port of a socket of this program. */
static void send_here(int fd, int port) {
    struct sockaddr_in to = address;
    to.sin_port = htons(port);
    CHECK(sendto(fd, "!", 1, 0, (struct sockaddr *)&to, sizeof to) == 1);
}

/* Sends to where nobody is until there is no room. */
static void fill(int fd) {
    static char bytes[60000];
    ssize_t sent;
    do {
        sent = sendto(fd, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&nowhere, sizeof nowhere);
    } while (sent == sizeof bytes);
    CHECK(sent == -1 && errno == EAGAIN);
}

/* Takes all that back. */
static void make_room(int fd) {
    CHECK(setsockopt(fd, SOL_RDS, RDS_CANCEL_SENT_TO, &nowhere, sizeof nowhere) == 0);
}

static void pause_for(int millis) {
    struct timespec time = {millis / 1000, millis % 1000 * 1000000L};
    while (nanosleep(&time, &time) == -1)
        ;
}

/* What this thread has kept a processor busy for. */
static long busy_millis(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static volatile sig_atomic_t handled;

/* What hangs is no success. */
static void *watch(void *nothing) {
    pause_for(60000);
    fprintf(stderr, "it hangs after %d signals\n", (int)handled);
    _exit(2);
    return nothing;
}

static pthread_t start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    CHECK(pthread_create(&thread, NULL, run, argument) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    return thread;
}

/* Sleeps until something can be sent. */
static void *wait_for_room(void *fd) {
    struct pollfd asked = {.fd = *(int *)fd, .events = POLLOUT};
    CHECK(poll(&asked, 1, -1) == 1);
    CHECK(asked.revents == POLLOUT);
    return NULL;
}

static void *select_for_room(void *fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(*(int *)fd, &set);
    CHECK(select(*(int *)fd + 1, NULL, &set, NULL, NULL) == 1);
    CHECK(FD_ISSET(*(int *)fd, &set));
    return NULL;
}

/* Who waits to send is woken, whatever others ask for meanwhile. */
static void writers(void) {
    int fd = bound_to(4000);
    struct pollfd asked = {.fd = fd, .events = POLLIN};
    for (int round = 0; round < 3; ++round) {
        fill(fd);
        pthread_t polling = start(wait_for_room, &fd);
        pthread_t selecting = start(select_for_room, &fd);
        pause_for(200);
        CHECK(poll(&asked, 1, 100) == 0);
        if (round == 1)
            fill(fd);
        make_room(fd);
        CHECK(pthread_join(polling, NULL) == 0);
        CHECK(pthread_join(selecting, NULL) == 0);
    }
    asked.events = POLLIN | POLLOUT;
    CHECK(poll(&asked, 1, -1) == 1 && asked.revents == POLLOUT);
    fill(fd);
    CHECK(poll(&asked, 1, 0) == 0);
}

/* Who waits for what does not come sleeps, also where there is something else. */
static void idle(void) {
    int fd = bound_to(4000), other = bound_to(4001);
    send_here(other, 4000);
    fill(fd);
    short kinds[] = {POLLOUT, 0, POLLPRI};
    for (int kind = 0; kind < 3; ++kind) {
        struct pollfd asked = {.fd = fd, .events = kinds[kind]};
        long before = busy_millis();
        CHECK(poll(&asked, 1, 1000) == 0);
        CHECK(busy_millis() - before < 500);
    }
    /* And so it is where there is nothing to receive, but room. */
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 1);
    make_room(fd);
    struct pollfd asked = {.fd = fd, .events = POLLIN};
    long before = busy_millis();
    CHECK(poll(&asked, 1, 1000) == 0);
    CHECK(busy_millis() - before < 500);
}

static void handle(int signal) {
    (void)signal;
    ++handled;
}

static void handle_by(int flags) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
}

static void ring_in(int millis) {
    struct itimerval time = {.it_value = {millis / 1000, millis % 1000 * 1000}};
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

/* A signal that is let through only while the program waits ends that, also one that has come before. */
static void masks(void) {
    int fd = bound_to(4000);
    sigset_t alarms, none;
    sigemptyset(&none);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    handle_by(0);
    CHECK(sigprocmask(SIG_BLOCK, &alarms, NULL) == 0);
    struct pollfd asked = {.fd = fd, .events = POLLIN};
    fd_set set;
    for (int early = 0; early < 2; ++early) {
        handled = 0;
        early ? (void)raise(SIGALRM) : ring_in(200);
        CHECK(ppoll(&asked, 1, NULL, &none) == -1 && errno == EINTR);
        CHECK(handled == 1);
        FD_ZERO(&set);
        FD_SET(fd, &set);
        early ? (void)raise(SIGALRM) : ring_in(200);
        CHECK(pselect(fd + 1, &set, NULL, NULL, NULL, &none) == -1 && errno == EINTR);
        CHECK(handled == 2);
    }
    /* What is ready comes first, and the signal stays. */
    struct timespec moment = {0, 1000};
    int other = bound_to(4001);
    send_here(other, 4000);
    raise(SIGALRM);
    CHECK(ppoll(&asked, 1, NULL, &none) == 1);
    CHECK(handled == 2);
    CHECK(ppoll(&asked, 1, &moment, &alarms) == 1);
    /* And where signals are kept out that come otherwise. */
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 1);
    CHECK(sigprocmask(SIG_SETMASK, &none, NULL) == 0);
    CHECK(handled == 3);
    ring_in(100);
    moment.tv_nsec = 300000000;
    CHECK(ppoll(&asked, 1, &moment, &alarms) == 0);
    CHECK(handled == 4);
}

/* Whether all threads but this block a signal; how many there are, or -1 if one has just begun: then it blocks
 * all signals. */
static int others_now(int signal) {
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    struct dirent *task;
    int others = 0, begins = 0;
    while ((task = readdir(tasks))) {
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid())
            continue;
        char path[300], line[200];
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        if (!status)
            continue;
        unsigned long long blocked = 0;
        char name[100] = "";
        while (fgets(line, sizeof line, status)) {
            sscanf(line, "Name: %99s", name);
            if (sscanf(line, "SigBlk: %llx", &blocked) == 1) {
                if (!(blocked >> (signal - 1) & 1))
                    fprintf(stderr, "the thread %s\n", name);
                CHECK(blocked >> (signal - 1) & 1);
                /* But what it would do itself is not kept from it. */
                begins |= blocked >> (SIGSEGV - 1) & 1;
                ++others;
            }
        }
        fclose(status);
    }
    closedir(tasks);
    return begins ? -1 : others;
}

/* The same when all have begun. */
static int others_that_block(int signal) {
    for (int looks = 0; looks < 500; looks++) {
        int others = others_now(signal);
        if (others >= 0)
            return others;
        usleep(10000);
    }
    return -1;
}

/* Signals that the program takes by itself come to it, though it has had a socket before. */
static void threads(void) {
    int fd = bound_to(4000);
    CHECK(others_that_block(SIGTERM) >= 1);
    send_here(fd, 4000);
    CHECK(others_that_block(SIGTERM) >= 1);
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    CHECK(sigprocmask(SIG_BLOCK, &ends, NULL) == 0);
    CHECK(kill(getpid(), SIGTERM) == 0);
    struct timespec moment = {5, 0};
    CHECK(sigtimedwait(&ends, NULL, &moment) == SIGTERM);
}

static void *send_later(void *fd) {
    pause_for(600);
    send_here(*(int *)fd, 4000);
    return NULL;
}

/* A handler ends a call that waits, unless calls go on after it. */
static void handlers(void) {
    int fd = bound_to(4000), other = bound_to(4001);
    char byte;
    struct msghdr message = {0};
    handle_by(0);
    ring_in(200);
    CHECK(recv(fd, &byte, 1, 0) == -1 && errno == EINTR);
    ring_in(200);
    CHECK(recvmsg(fd, &message, 0) == -1 && errno == EINTR);
    ring_in(200);
    CHECK(recv(fd, &byte, 1, MSG_PEEK) == -1 && errno == EINTR);
    fill(fd);
    ring_in(200);
    CHECK(sendto(fd, &byte, 1, 0, (struct sockaddr *)&nowhere, sizeof nowhere) == -1 && errno == EINTR);
    CHECK(handled == 4);
    handle_by(SA_RESTART);
    pthread_t sender = start(send_later, &other);
    ring_in(200);
    CHECK(recv(fd, &byte, 1, 0) == 1 && byte == '!');
    CHECK(handled == 5);
    CHECK(pthread_join(sender, NULL) == 0);
}

/* Values at the limits of options and lists, as in net/rds and net/core of Linux. */
static void limits(void) {
    int unbound = socket(RDS, SOCK_SEQPACKET, 0), fd = bound_to(4000), size = 0x7fffffff, max = 0;
    uint64_t all[2] = {0, 0};
    CHECK(setsockopt(unbound, SOL_RDS, RDS_FREE_MR, all, sizeof all) == -1 && errno == EINVAL);
    CHECK(setsockopt(fd, SOL_RDS, RDS_FREE_MR, all, sizeof all) == 0);
    CHECK(setsockopt(fd, SOL_RDS, RDS_FREE_MR, all, 8) == -1 && errno == EINVAL);
    char byte = 0;
    struct iovec negative = {&byte, ~(size_t)0};
    struct sockaddr_in to = address;
    to.sin_port = htons(4000);
    struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &negative, .msg_iovlen = 1};
    CHECK(sendmsg(fd, &message, 0) == -1 && errno == EINVAL);
    CHECK(recvmsg(fd, &message, MSG_DONTWAIT) == -1 && errno == EINVAL);
    FILE *file = fopen("/proc/sys/net/core/wmem_max", "r");
    CHECK(file && fscanf(file, "%d", &max) == 1 && fclose(file) == 0);
    socklen_t length = sizeof size;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, &length) == 0 && size == 2 * max);
}

/* What no call can read or write fails with the kernel's error, and changes nothing. */
static void pointers(void) {
    int fd = bound_to(4000), other = bound_to(4001);
    char *bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), byte = 0;
    CHECK(bad != MAP_FAILED);
    struct sockaddr_in to = address;
    to.sin_port = htons(4000);
    struct sockaddr *name = (struct sockaddr *)&to;
    struct iovec good = {&byte, 1}, pieces[2] = {{&byte, 1}, {bad, 1}};
    struct msghdr out = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &good, .msg_iovlen = 1};
    socklen_t length = sizeof to;
    CHECK(sendto(other, bad, 1, 0, name, sizeof to) == -1 && errno == EFAULT);
    CHECK(sendto(other, &byte, 1, 0, (struct sockaddr *)bad, sizeof to) == -1 && errno == EFAULT);
    CHECK(sendmsg(other, (struct msghdr *)bad, 0) == -1 && errno == EFAULT);
    struct msghdr wrong[] = {out, out, out, out};
    wrong[0].msg_name = bad;
    wrong[1].msg_iov = (struct iovec *)bad;
    wrong[2].msg_iov = pieces;
    wrong[2].msg_iovlen = 2;
    wrong[3].msg_control = bad;
    wrong[3].msg_controllen = 32;
    for (int i = 0; i < 4; i++)
        CHECK(sendmsg(other, &wrong[i], 0) == -1 && errno == EFAULT);
    CHECK(connect(other, (struct sockaddr *)bad, sizeof to) == -1 && errno == EFAULT);
    CHECK(setsockopt(other, SOL_SOCKET, SO_SNDBUF, bad, 4) == -1 && errno == EFAULT);
    CHECK(getsockopt(other, SOL_SOCKET, SO_SNDBUF, bad, &length) == -1 && errno == EFAULT);
    CHECK(getsockopt(other, SOL_SOCKET, SO_SNDBUF, &byte, (socklen_t *)bad) == -1 && errno == EFAULT);
    CHECK(getsockname(other, name, (socklen_t *)bad) == -1 && errno == EFAULT);
    CHECK(getsockname(other, (struct sockaddr *)bad, &length) == -1 && errno == EFAULT);
    CHECK(setsockopt(other, SOL_RDS, RDS_GET_MR, bad, 32) == -1 && errno == EFAULT);
    /* Nothing has arrived, and what has stays. */
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    send_here(other, 4000);
    struct pollfd asked = {.fd = fd, .events = POLLIN};
    CHECK(poll(&asked, 1, -1) == 1);
    CHECK(recv(fd, bad, 1, 0) == -1 && errno == EFAULT);
    CHECK(recvfrom(fd, &byte, 1, 0, (struct sockaddr *)bad, &length) == -1 && errno == EFAULT);
    CHECK(recvfrom(fd, &byte, 1, 0, name, (socklen_t *)bad) == -1 && errno == EFAULT);
    CHECK(recvmsg(fd, (struct msghdr *)bad, 0) == -1 && errno == EFAULT);
    for (int i = 0; i < 4; i++)
        CHECK(recvmsg(fd, &wrong[i], 0) == -1 && errno == EFAULT);
    CHECK(recv(fd, &byte, 1, 0) == 1 && byte == '!');
}

static void by_recv(int fd) {
    char byte;
    recv(fd, &byte, 1, 0);
}

static void by_recvmsg(int fd) {
    char byte;
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    recvmsg(fd, &message, 0);
}

static void by_read(int fd) {
    char byte;
    CHECK(read(fd, &byte, 1) != 0);
}

static void by_poll(int fd) {
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    poll(&entry, 1, -1);
}

/* The send buffer is full. */
static void by_sendto(int fd) {
    static char bytes[60000];
    sendto(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&nowhere, sizeof nowhere);
}

/* Threads are cancelled at the beginning of a call and while it blocks, and the next calls find no lock taken. */
static void cancellation(void) {
    static const struct {
        void (*call)(int);
        int needs_full_buffer;
    } calls[] = {{by_recv, 0}, {by_recvmsg, 0}, {by_read, 0}, {by_poll, 0}, {by_sendto, 1}};
    int fd = bound_to(4000), other = bound_to(4001);
    char byte;
    for (size_t i = 0; i < 2 * sizeof calls / sizeof *calls; i++) {
        struct blocked blocked = {.call = calls[i / 2].call, .fd = fd};
        pthread_t thread;
        void *result;
        if (calls[i / 2].needs_full_buffer)
            fill(fd);
        CHECK(pthread_create(&thread, NULL, block, &blocked) == 0);
        if (i % 2)
            wait_asleep(&blocked);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
        if (calls[i / 2].needs_full_buffer)
            make_room(fd);
        send_here(other, 4000);
        CHECK(recv(fd, &byte, 1, 0) == 1 && byte == '!');
        send_here(fd, 4001);
        CHECK(recv(other, &byte, 1, 0) == 1 && byte == '!');
    }
}

static const struct part {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"writers", writers}, {"idle", idle}, {"masks", masks}, {"threads", threads}, {"handlers", handlers},
    {"pointers", pointers}, {"limits", limits}, {"cancellation", cancellation},
};

int main(int argc, char **argv) {
    CHECK(argc == 3);
    CHECK(inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
    nowhere.sin_addr.s_addr = address.sin_addr.s_addr ^ htonl(64);
    nowhere.sin_port = htons(9);
    start(watch, NULL);
    for (size_t part = 0; part < sizeof parts / sizeof *parts; ++part) {
        if (strcmp(parts[part].name, argv[1]) == 0) {
            parts[part].run();
            puts("all is well");
            return 0;
        }
    }
    fprintf(stderr, "no part %s\n", argv[1]);
    return 1;
}
