// Cost of many idle connections in one process.
//
//   idle_connections IP PORT COUNT
//
// A child process opens COUNT connections in sequence. The parent accepts the connections and prints
// `idle_connections COUNT BYTES THREADS IDLE`: memory growth per connection in bytes, number of threads, and processor time in
// microseconds per idle second. Runs on librdmacm's rsockets, or on a preloaded library.
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

// Length of the idle period in seconds, after one second for pending work.
enum { IDLE = 5 };

static void die(const char *what) {
    perror(what);
    exit(1);
}

// A number from one of this process's files in /proc.
static long proc_number(const char *path, const char *field) {
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

// Resident memory in KiB, exact: the sum in `status` may lag by dozens of pages per thread.
static long memory(void) { return proc_number("/proc/self/smaps_rollup", "Rss:"); }

static int64_t busy(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * INT64_C(1000000) + time.tv_nsec / 1000;
}

// Opens one connection for each byte from the pipe.
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
        fprintf(stderr, "usage: idle_connections IP PORT COUNT\n");
        return 1;
    }
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &name.sin_addr) != 1) die(argv[1]);
    long count = atol(argv[3]), first = 0;
    int request_pipe[2];
    if (count < 2 || pipe(request_pipe)) die("pipe");
    // Fork before any library starts a thread.
    pid_t child = fork();
    if (child < 0) die("fork");
    if (!child) connect_all(&name, request_pipe[0]);
    int listener = rsocket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0) die("rsocket");
    if (rbind(listener, (void *)&name, sizeof name)) die("rbind");
    if (rlisten(listener, 128)) die("rlisten");
    for (long i = 0; i < count; i++) {
        // The first connection opens the device, shared by all others.
        if (i == 1) first = memory();
        for (long more = i == 0 ? 1 : i == 1 ? count - 1 : 0; more > 0; more--)
            if (write(request_pipe[1], "", 1) != 1) die("pipe");
        if (raccept(listener, NULL, NULL) < 0) die("raccept");
    }
    long grown = memory() - first;
    sleep(1);
    int64_t before = busy();
    sleep(IDLE);
    double idle = (double)(busy() - before) / IDLE;
    printf("idle_connections %ld %ld %ld %.0f\n", count, grown * 1024 / (count - 1), proc_number("/proc/self/status", "Threads:"), idle);
    fflush(stdout);
    kill(child, SIGKILL);
    _exit(0);
}
