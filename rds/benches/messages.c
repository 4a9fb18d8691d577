// What messages cost on sockets of the family RDS: the kernel's, or those that are preloaded.
//
//   messages server IP
//   messages memory NAME IP PEER
//   messages first NAME IP PEER ROUNDS HEAR TELL
//   messages second NAME IP PEER ROUNDS HEAR TELL
//
// `first` and `second` run at the same time, and measure everything by turns, so many times: the first one, the
// second twice, and the first again. Whose turn it is goes to and fro as a byte in two FIFOs. What is measured is
// printed as `== NAME WHAT SIZE NUMBER`: `latency` is the microseconds there and back of the typical trip, `rate`
// messages a second, `write` bytes a second by RDMA into the client's memory. `memory` prints how many bytes of
// memory the client's host, its kernel and the program together, has less for each of SIZE further connections.
//
// Before the first of the rounds goes one that is not measured, and the first trips of a turn are not: an emulator
// translates each program anew, and forgets. While messages go there and back, both programs stay on the processor
// that handles what the network brings. Where they wake up is chance otherwise, and makes a third of the difference
// from one run to the next.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FAMILY = 21, LEVEL = 276, ARGS = 1, DEST = 2, MAP = 3, PORT = 4000, LIMIT = 1 << 20 };
enum { WRITE = 1, USE_ONCE = 8 };
enum { PIECE = 65536, DEPTH = 8, SET_TOS = 0x89e0, CROWD = 15, TRIPS = 200, EARLY = 40, CPUS = 64 };

static char buffer[1 << 20];
static const char *name;
static int is_measured;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static struct sockaddr_in address(const char *ip, int port) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, ip, &name.sin_addr) != 1) die(ip);
    return name;
}

static int bound(const char *ip, int port) {
    struct sockaddr_in name = address(ip, port);
    int limit = LIMIT, fd = socket(FAMILY, SOCK_SEQPACKET, 0);
    if (fd < 0) die("socket");
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &limit, sizeof limit)) die("SO_SNDBUFFORCE");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &limit, sizeof limit)) die("SO_RCVBUFFORCE");
    if (bind(fd, (void *)&name, sizeof name)) die("bind");
    return fd;
}

// Sends `size` bytes that begin with `op`, with a control message if there is one.
static void put(int fd, struct sockaddr_in *to, char op, size_t size, int kind, void *data, size_t len) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(64)];
    } control;
    struct iovec piece = {buffer, size};
    struct msghdr msg = {.msg_name = to, .msg_namelen = sizeof *to, .msg_iov = &piece, .msg_iovlen = 1};
    buffer[0] = op;
    if (kind) {
        memset(&control, 0, sizeof control);
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(len);
        control.header = (struct cmsghdr){CMSG_LEN(len), LEVEL, kind};
        memcpy(CMSG_DATA(&control.header), data, len);
    }
    while (sendmsg(fd, &msg, 0) < 0) {
        // A kernel cannot register memory before it is connected.
        if (errno != EAGAIN) die("sendmsg");
        usleep(1000);
    }
}

// Receives a message; returns its first byte, and the name of memory that came with it.
static char get(int fd, struct sockaddr_in *from, uint64_t *cookie) {
    union {
        struct cmsghdr header;
        char room[256];
    } control;
    struct iovec piece = {buffer, sizeof buffer};
    struct msghdr msg = {
        .msg_name = from, .msg_namelen = sizeof *from, .msg_iov = &piece, .msg_iovlen = 1,
        .msg_control = &control, .msg_controllen = sizeof control,
    };
    ssize_t got;
    do got = recvmsg(fd, &msg, 0);
    while (got == 0 || (got < 0 && errno == EAGAIN));
    if (got < 0) die("recvmsg");
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&msg); one; one = CMSG_NXTHDR(&msg, one))
        if (one->cmsg_level == LEVEL && one->cmsg_type == DEST) memcpy(cookie, CMSG_DATA(one), 8);
    return buffer[0];
}

static void *pages(size_t size) {
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    memset(at, 7, size);
    return at;
}

// The processor that has handled the most interrupts of what the network brings.
static int network_processor(void) {
    char line[4096];
    unsigned long sums[CPUS] = {0};
    int most = 0;
    FILE *file = fopen("/proc/interrupts", "r");
    if (!file) die("/proc/interrupts");
    while (fgets(line, sizeof line, file)) {
        char *at = strchr(line, ':'), *end;
        if (!at || !strstr(line, "-input.")) continue;
        at++;
        for (int cpu = 0; cpu < CPUS; cpu++, at = end) {
            unsigned long count = strtoul(at, &end, 10);
            if (end == at) break;
            sums[cpu] += count;
        }
    }
    fclose(file);
    for (int cpu = 1; cpu < CPUS; cpu++)
        if (sums[cpu] > sums[most]) most = cpu;
    return most;
}

// Stays on that processor, or goes where there is time.
static void stay(int there) {
    static cpu_set_t all;
    cpu_set_t set;
    if (!CPU_COUNT(&all) && sched_getaffinity(0, sizeof all, &all)) die("sched_getaffinity");
    set = all;
    if (there) {
        CPU_ZERO(&set);
        CPU_SET(network_processor(), &set);
    }
    if (sched_setaffinity(0, sizeof set, &set)) die("sched_setaffinity");
}

static void serve(int fd) {
    struct sockaddr_in from;
    uint64_t cookie = 0, local[2] = {(uintptr_t)pages(PIECE), PIECE};
    for (;;) {
        char op = get(fd, &from, &cookie);
        if (op == 'e') put(fd, &from, 'e', 64, 0, NULL, 0);
        if (op == 's' || op == 'g') {
            stay(op == 's');
            put(fd, &from, op, 1, 0, NULL, 0);
        }
        if (op == 'q') {
            put(fd, &from, 'q', 1, 0, NULL, 0);
            break;
        }
        if (op == 'w') {
            uint64_t args[7] = {cookie, 0, PIECE, (uintptr_t)local, 1, WRITE, 0};
            put(fd, &from, 'w', 1, ARGS, args, sizeof args);
        }
    }
}

// Waits for the server, and for silence.
static void meet(int fd, struct sockaddr_in *peer) {
    struct pollfd one = {fd, POLLIN, 0};
    uint64_t cookie;
    do put(fd, peer, 'e', 64, 0, NULL, 0);
    while (poll(&one, 1, 1000) <= 0);
    while (poll(&one, 1, 500) > 0)
        if (recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) < 0 && errno != EAGAIN) die("recv");
    (void)cookie;
}

static void print(const char *what, size_t size, double number) {
    if (is_measured) printf("== %s %s %zu %f\n", name, what, size, number);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Both stay on the network's processor, or go where there is time.
static void both_stay(int fd, struct sockaddr_in *peer, int there) {
    struct sockaddr_in from;
    uint64_t cookie;
    stay(there);
    put(fd, peer, there ? 's' : 'g', 1, 0, NULL, 0);
    get(fd, &from, &cookie);
}

static void latency(int fd, struct sockaddr_in *peer) {
    struct sockaddr_in from;
    uint64_t cookie;
    double trips[TRIPS];
    both_stay(fd, peer, 1);
    for (int i = -EARLY; i < TRIPS; i++) {
        double start = now();
        put(fd, peer, 'e', 64, 0, NULL, 0);
        get(fd, &from, &cookie);
        if (i >= 0) trips[i] = now() - start;
    }
    both_stay(fd, peer, 0);
    qsort(trips, TRIPS, sizeof *trips, compare);
    print("latency", 64, (trips[TRIPS / 2 - 1] + trips[TRIPS / 2]) / 2 * 1e6);
}

static void rate(int fd, struct sockaddr_in *peer, size_t size, int count) {
    struct sockaddr_in from;
    uint64_t cookie;
    double start = now();
    for (int i = 0; i < count; i++) put(fd, peer, 'c', size, 0, NULL, 0);
    // It is answered when all before it have been received.
    put(fd, peer, 'e', 64, 0, NULL, 0);
    get(fd, &from, &cookie);
    print("rate", size, count / (now() - start));
}

static void write_back(int fd, struct sockaddr_in *peer, int count) {
    struct sockaddr_in from;
    uint64_t cookie;
    char *memory = pages((size_t)PIECE * DEPTH);
    double start = now();
    for (int i = 0; i < count + DEPTH; i++) {
        if (i >= DEPTH && get(fd, &from, &cookie) != 'w') die("an answer");
        if (i < count) {
            uint64_t args[4] = {(uintptr_t)memory + PIECE * (i % DEPTH), PIECE, (uintptr_t)&cookie, USE_ONCE | WRITE};
            put(fd, peer, 'w', 1, MAP, args, sizeof args);
        }
    }
    print("write", PIECE, (double)count * PIECE / (now() - start));
    munmap(memory, (size_t)PIECE * DEPTH);
}

// The bytes of memory that nothing but copies of files is in.
static double unused(void) {
    char line[256];
    double sum = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    if (!file) die("/proc/meminfo");
    while (fgets(line, sizeof line, file)) {
        double kib;
        if (sscanf(line, "MemFree: %lf", &kib) == 1 || sscanf(line, "Buffers: %lf", &kib) == 1 ||
            sscanf(line, "Cached: %lf", &kib) == 1)
            sum += kib * 1024;
    }
    fclose(file);
    return sum;
}

// Each type of service has a connection of its own. Answers come on the first one.
static void memory(const char *ip, struct sockaddr_in *peer) {
    struct sockaddr_in from;
    uint64_t cookie;
    double before = unused();
    for (unsigned char tos = 1; tos <= CROWD; tos++) {
        int fd = bound(ip, PORT + tos);
        if (ioctl(fd, SET_TOS, &tos)) die("SIOCRDSSETTOS");
        put(fd, peer, 'e', 64, 0, NULL, 0);
        get(fd, &from, &cookie);
    }
    // What a kernel does about a connection later.
    sleep(1);
    print("memory", CROWD, (before - unused()) / CROWD);
    fflush(stdout);
}

// What is measured in a round, and how much of it at a time. There and back scatters most.
static const struct {
    char what;
    size_t size;
    int count;
} cases[] = {
    {'l', 64, TRIPS}, {'r', 64, 2000},   {'r', 1024, 1600},   {'l', 64, TRIPS},
    {'r', 8192, 400}, {'r', 65536, 60}, {'w', PIECE, 60},
};
enum { CASES = sizeof cases / sizeof *cases };

static void measure(int fd, struct sockaddr_in *peer, int at) {
    if (cases[at].what == 'l') latency(fd, peer);
    if (cases[at].what == 'r') rate(fd, peer, cases[at].size, cases[at].count);
    if (cases[at].what == 'w') write_back(fd, peer, cases[at].count);
    fflush(stdout);
}

// Waits until it is this one's turn.
static void await_turn(int hear) {
    char token;
    if (read(hear, &token, 1) != 1) die("the other's turn");
}

static void end_turn(int tell) {
    if (write(tell, "t", 1) != 1) die("the other's turn");
}

// Both open what both have in the same order, since each waits for the other.
static void take_turns(int fd, struct sockaddr_in *peer, int is_second, int rounds, char *const fifos[2]) {
    int hear, tell;
    if (is_second) {
        hear = open(fifos[0], O_RDONLY);
        tell = open(fifos[1], O_WRONLY);
    } else {
        tell = open(fifos[1], O_WRONLY);
        hear = open(fifos[0], O_RDONLY);
    }
    if (hear < 0 || tell < 0) die("open");
    for (int round = 0; round <= rounds; round++) {
        is_measured = round > 0;
        for (int at = 0; at < CASES; at++) {
            if (is_second) await_turn(hear);
            measure(fd, peer, at);
            if (!is_second) {
                end_turn(tell);
                await_turn(hear);
            }
            measure(fd, peer, at);
            if (is_second) end_turn(tell);
        }
    }
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "server")) {
        serve(bound(argv[2], PORT));
        // So that the answer leaves.
        sleep(1);
        return 0;
    }
    int is_second = argc == 8 && !strcmp(argv[1], "second");
    int with_memory = argc == 5 && !strcmp(argv[1], "memory");
    if (!with_memory && !is_second && !(argc == 8 && !strcmp(argv[1], "first"))) return 2;
    name = argv[2];
    struct sockaddr_in peer = address(argv[4], PORT);
    int fd = bound(argv[3], PORT);
    meet(fd, &peer);
    if (with_memory) {
        is_measured = 1;
        memory(argv[3], &peer);
    } else {
        take_turns(fd, &peer, is_second, atoi(argv[5]), argv + 6);
    }
    // With the answer comes an acknowledgement: without, it would be sent again to the next server there.
    put(fd, &peer, 'q', 1, 0, NULL, 0);
    struct sockaddr_in from;
    uint64_t cookie;
    get(fd, &from, &cookie);
    // By then this one is gone.
    sleep(2);
    return 0;
}
