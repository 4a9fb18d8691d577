// Many connections that nobody uses, in one process.
//
//   crowd IP PORT COUNT
//
// A child connects so often, one after the other. This process accepts them all, and prints `crowd COUNT BYTES THREADS IDLE`: by how
// many bytes of memory it has grown for each, how many threads it has, and how many microseconds of a second it
// is on a processor while nothing happens. It runs on librdmacm's rsockets, or on those that are preloaded.
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

// For how many seconds it is idle, after one in which what was begun may end.
enum { IDLE = 5 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

// A number that the kernel tells of this process.
static long told(const char *path, const char *field) {
    FILE *file = fopen(path, "r");
    if (!file) die(path);
    char line[256];
    long number = -1;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field))) number = atol(line + strlen(field));
    fclose(file);
    if (number < 0) die(field);
    return number;
}

// Its memory in KiB, page by page: the sum in `status` may be late by dozens of pages of each thread.
static long memory(void) { return told("/proc/self/smaps_rollup", "Rss:"); }

static int64_t busy(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * INT64_C(1000000) + time.tv_nsec / 1000;
}

// Connects whenever it is told.
static void connect_all(struct sockaddr_in *to, int pipe) {
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(pipe, &byte, 1) == 1) {
        int fd = rsocket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0) die("rsocket");
        if (rconnect(fd, (void *)to, sizeof *to)) die("rconnect");
    }
    die("pipe");
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: crowd IP PORT COUNT\n");
        return 1;
    }
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &name.sin_addr) != 1) die(argv[1]);
    long count = atol(argv[3]), first = 0;
    int tell[2];
    if (count < 2 || pipe(tell)) die("pipe");
    // Before anything starts a thread.
    pid_t child = fork();
    if (child < 0) die("fork");
    if (!child) connect_all(&name, tell[0]);
    int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0) die("rsocket");
    if (rbind(listener, (void *)&name, sizeof name)) die("rbind");
    if (rlisten(listener, 128)) die("rlisten");
    for (long i = 0; i < count; i++) {
        // The first opens the device, which all others share.
        if (i == 1) first = memory();
        for (long more = i == 0 ? 1 : i == 1 ? count - 1 : 0; more > 0; more--)
            if (write(tell[1], "", 1) != 1) die("pipe");
        if (raccept(listener, NULL, NULL) < 0) die("raccept");
    }
    long grown = memory() - first;
    sleep(1);
    int64_t before = busy();
    sleep(IDLE);
    double idle = (double)(busy() - before) / IDLE;
    printf("crowd %ld %ld %ld %.0f\n", count, grown * 1024 / (count - 1), told("/proc/self/status", "Threads:"), idle);
    fflush(stdout);
    kill(child, SIGKILL);
    _exit(0);
}
