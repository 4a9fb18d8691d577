/* Shared by programs that make calls on sockets: checks, and connections of the process with itself. */

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHECK(condition) check((condition), #condition, __LINE__)

static inline void check(int condition, const char *what, int line) {
    if (!condition) {
        fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
        exit(1);
    }
}

static struct sockaddr_in address = {.sin_family = AF_INET};

/* The two ends of a connection. */
struct ends {
    int client, server;
};

static inline int listener_at(struct sockaddr_in *name) {
    socklen_t length = sizeof *name;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *name = address;
    CHECK(listener >= 0);
    CHECK(bind(listener, (struct sockaddr *)name, sizeof *name) == 0);
    CHECK(listen(listener, 4) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)name, &length) == 0);
    return listener;
}

static inline struct ends connected(void) {
    struct sockaddr_in name;
    int listener = listener_at(&name);
    struct ends ends = {.client = socket(AF_INET, SOCK_STREAM, 0)};
    CHECK(connect(ends.client, (struct sockaddr *)&name, sizeof name) == 0);
    ends.server = accept(listener, NULL, NULL);
    CHECK(ends.server >= 0);
    CHECK(close(listener) == 0);
    return ends;
}

/* A system call by an instruction, as Go's compiler makes them: no library sees it. */
static inline long raw(long number, long a, long b, long c, long d, long e, long f) {
    long result;
#ifdef __x86_64__
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
                  x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    errno = result < 0 ? (int)-result : 0;
    return result < 0 ? -1 : result;
}

/* Whether the descriptor is no network socket of the kernel: the descriptor of an rsocket is a local one. */
static inline int is_rsocket(int fd) {
    struct sockaddr_storage name;
    socklen_t length = sizeof name;
    CHECK(raw(SYS_getsockname, fd, (long)&name, (long)&length, 0, 0, 0) == 0);
    return name.ss_family == AF_UNIX;
}

static inline void passes(int from, int to) {
    char out[] = "some bytes", in[sizeof out];
    CHECK(write(from, out, sizeof out) == sizeof out);
    CHECK(recv(to, in, sizeof in, MSG_WAITALL) == sizeof in);
    CHECK(memcmp(in, out, sizeof in) == 0);
}

/* A part of a program, and its name. */
struct part {
    const char *name;
    void (*run)(void);
};

/* Runs the part that the first argument names, at the address that is the second. */
static inline int run_part(const struct part *parts, size_t count, int argc, char **argv) {
    CHECK(argc == 3 && inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(parts[i].name, argv[1]) == 0) {
            parts[i].run();
            puts("all is well");
            return 0;
        }
    }
    fprintf(stderr, "there is no %s\n", argv[1]);
    return 2;
}
