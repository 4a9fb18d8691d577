/* One side of connections with another process, which may use librdmacm's rsockets, or these.

     peers server ADDR threads          echoes, by two threads for each connection
     peers client ADDR PORT threads     sends and receives at once, by two threads for each connection
     peers server ADDR mappings         receives what its peer sends, and no more
     peers client ADDR PORT mappings    maps and unmaps memory, which uses up credits */

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include HEADER

enum { CONNECTIONS = 4, ROUNDS = 60, SIZE = 3000, DEPTH = 16 };

#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno);    \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static struct sockaddr_in address = {.sin_family = AF_INET};

static void set(int fd, int level, int name, int value) {
    CHECK(rsetsockopt(fd, level, name, &value, sizeof value) == 0);
}

/* With the smallest queues, so that credits matter. */
static int opened(int mappings) {
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    if (mappings) {
        set(fd, SOL_RDMA, RDMA_SQSIZE, DEPTH);
        set(fd, SOL_RDMA, RDMA_RQSIZE, DEPTH);
        set(fd, SOL_RDMA, RDMA_IOMAPSIZE, 1);
    }
    return fd;
}

static void send_all(int fd, const char *bytes, size_t len) {
    while (len > 0) {
        ssize_t sent = rsend(fd, bytes, len, 0);
        CHECK(sent > 0);
        bytes += sent, len -= sent;
    }
}

/* Data between the two threads of a connection of the server's. */
struct echo {
    int fd;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t len;
    int ended;
    char bytes[SIZE];
};

static void *echo_out(void *data) {
    struct echo *echo = data;
    for (;;) {
        char bytes[SIZE];
        pthread_mutex_lock(&echo->lock);
        while (echo->len == 0 && !echo->ended)
            pthread_cond_wait(&echo->changed, &echo->lock);
        size_t len = echo->len;
        memcpy(bytes, echo->bytes, len);
        echo->len = 0;
        pthread_cond_signal(&echo->changed);
        pthread_mutex_unlock(&echo->lock);
        if (len == 0)
            break;
        send_all(echo->fd, bytes, len);
    }
    CHECK(rshutdown(echo->fd, SHUT_WR) == 0);
    return NULL;
}

static void *echo_in(void *data) {
    struct echo *echo = data;
    pthread_t out;
    pthread_mutex_init(&echo->lock, NULL);
    pthread_cond_init(&echo->changed, NULL);
    CHECK(pthread_create(&out, NULL, echo_out, echo) == 0);
    for (;;) {
        char bytes[SIZE];
        ssize_t len = rrecv(echo->fd, bytes, sizeof bytes, 0);
        CHECK(len >= 0);
        pthread_mutex_lock(&echo->lock);
        while (echo->len > 0)
            pthread_cond_wait(&echo->changed, &echo->lock);
        memcpy(echo->bytes, bytes, len);
        echo->len = len;
        echo->ended = len == 0;
        pthread_cond_signal(&echo->changed);
        pthread_mutex_unlock(&echo->lock);
        if (len == 0)
            break;
    }
    CHECK(pthread_join(out, NULL) == 0);
    CHECK(rclose(echo->fd) == 0);
    return NULL;
}

static void fill(char *bytes, int connection, int round) {
    for (int i = 0; i < SIZE; i++)
        bytes[i] = connection * 31 + round * 7 + i;
}

struct call {
    int fd, connection;
};

static void *call_out(void *data) {
    struct call *call = data;
    char bytes[SIZE];
    for (int round = 0; round < ROUNDS; round++) {
        fill(bytes, call->connection, round);
        send_all(call->fd, bytes, SIZE);
    }
    CHECK(rshutdown(call->fd, SHUT_WR) == 0);
    return NULL;
}

static int connect_to_peer(int mappings) {
    int fd = opened(mappings);
    CHECK(rconnect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void *call_in(void *data) {
    struct call *call = data;
    pthread_t out;
    call->fd = connect_to_peer(0);
    CHECK(pthread_create(&out, NULL, call_out, call) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        char got[SIZE], expected[SIZE];
        fill(expected, call->connection, round);
        for (size_t at = 0; at < SIZE;) {
            /* One thread polls while the other sends. */
            struct pollfd one = {.fd = call->fd, .events = POLLIN};
            CHECK(rpoll(&one, 1, 60000) == 1);
            ssize_t len = rrecv(call->fd, got + at, SIZE - at, MSG_DONTWAIT);
            CHECK(len > 0 || (len < 0 && errno == EAGAIN));
            at += len > 0 ? len : 0;
        }
        CHECK(memcmp(got, expected, SIZE) == 0);
    }
    CHECK(pthread_join(out, NULL) == 0);
    char end;
    CHECK(rrecv(call->fd, &end, 1, 0) == 0);
    CHECK(rclose(call->fd) == 0);
    return NULL;
}

static void serve_threads(int listener) {
    static struct echo echoes[CONNECTIONS];
    pthread_t threads[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        echoes[i].fd = raccept(listener, NULL, NULL);
        CHECK(echoes[i].fd >= 0);
        CHECK(pthread_create(&threads[i], NULL, echo_in, &echoes[i]) == 0);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void call_threads(void) {
    static struct call calls[CONNECTIONS];
    pthread_t threads[CONNECTIONS];
    for (int i = 0; i < CONNECTIONS; i++) {
        calls[i].connection = i;
        CHECK(pthread_create(&threads[i], NULL, call_in, &calls[i]) == 0);
    }
    for (int i = 0; i < CONNECTIONS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void serve_mappings(int listener) {
    int fd = raccept(listener, NULL, NULL);
    CHECK(fd >= 0);
    char byte;
    while (rrecv(fd, &byte, 1, 0) == 1)
        ;
    CHECK(rclose(fd) == 0);
}

/* Each announcement uses up a credit. A peer that does not give it back is out of credits for good after
   some; one that does never is. */
static void call_mappings(void) {
    int fd = connect_to_peer(1), round;
    char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (round = 0; round < 10 * DEPTH; round++) {
        struct pollfd one = {.fd = fd, .events = POLLOUT};
        if (rpoll(&one, 1, 3000) == 0)
            break;
        CHECK(one.revents == POLLOUT);
        CHECK(riomap(fd, memory, 4096, PROT_WRITE, 0, 0) == 0);
        ssize_t sent = rsend(fd, "!", 1, MSG_DONTWAIT);
        CHECK(sent == 1 || (sent == -1 && errno == EAGAIN));
        CHECK(riounmap(fd, memory, 4096) == 0);
    }
    puts(round < 10 * DEPTH ? "stalls after many mappings" : "continues after many mappings");
    if (round < 10 * DEPTH) {
        CHECK(round >= DEPTH / 2);
        CHECK(rsend(fd, "!", 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    }
    CHECK(rclose(fd) == 0);
}

int main(int argc, char **argv) {
    int serves = argc == 4 && strcmp(argv[1], "server") == 0;
    CHECK(serves || argc == 5);
    CHECK(inet_pton(AF_INET, argv[2], &address.sin_addr) == 1);
    int mappings = strcmp(argv[argc - 1], "mappings") == 0;
    if (serves) {
        socklen_t length = sizeof address;
        int listener = opened(mappings);
        CHECK(rbind(listener, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(rlisten(listener, 16) == 0);
        CHECK(rgetsockname(listener, (struct sockaddr *)&address, &length) == 0);
        printf("%d\n", ntohs(address.sin_port));
        fflush(stdout);
        mappings ? serve_mappings(listener) : serve_threads(listener);
        CHECK(rclose(listener) == 0);
    } else {
        address.sin_port = htons(atoi(argv[3]));
        mappings ? call_mappings() : call_threads();
    }
    puts("all is well");
    return 0;
}
