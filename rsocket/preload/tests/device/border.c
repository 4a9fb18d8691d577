/* Calls that are left by a jump out of a handler, and calls of a process that changes its identity. */

#define _GNU_SOURCE
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "calls.h"

static sigjmp_buf before;

static void jump(int signal) {
    (void)signal;
    siglongjmp(before, 1);
}

static void alarm_in(long micros) {
    struct itimerval time = {.it_value = {0, micros}};
    CHECK(setitimer(ITIMER_REAL, &time, NULL) == 0);
}

static void *read_all(void *from) {
    static char bytes[65536];
    while (recv(*(int *)from, bytes, sizeof bytes, 0) > 0)
        ;
    return NULL;
}

/* Handlers jump out of blocked calls, of a receive and of a send. The next calls find no lock taken. */
static void jumping(void) {
    static struct ends ends;
    static char bytes[4000];
    volatile int jumps = 0;
    ends = connected();
    CHECK(signal(SIGALRM, jump) != SIG_ERR);
    while (sigsetjmp(before, 1) == 0 || ++jumps < 3) {
        alarm_in(100000);
        recv(ends.client, bytes, sizeof bytes, 0);
    }
    passes(ends.server, ends.client);
    jumps = 0;
    while (sigsetjmp(before, 1) == 0 || ++jumps < 3) {
        alarm_in(300000);
        for (;;)
            CHECK(send(ends.client, bytes, sizeof bytes, 0) > 0);
    }
    alarm_in(0);
    CHECK(signal(SIGALRM, SIG_DFL) != SIG_ERR);
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, read_all, &ends.server) == 0);
    CHECK(send(ends.client, bytes, sizeof bytes, 0) == sizeof bytes);
    passes(ends.server, ends.client);
    CHECK(shutdown(ends.client, SHUT_WR) == 0);
    CHECK(pthread_join(reader, NULL) == 0);
}

static int user(void) { return setgid(1000) == 0 && setuid(1000) == 0 ? 0 : -1; }

static int groups(void) { return setgroups(0, NULL); }

static int bounds(void) { return prctl(PR_CAPBSET_DROP, CAP_SYS_TIME, 0, 0, 0); }

static int secure(void) { return prctl(PR_SET_SECUREBITS, 0, 0, 0, 0); }

static int root(void) { return chroot("/tmp") == 0 && chdir("/") == 0 ? 0 : -1; }

static int jail(void) { return root() == 0 ? user() : -1; }

static int mounts(void) { return unshare(CLONE_NEWNS); }

/* Changes of the identity of a process, and whether a new socket has its device afterwards. */
static const struct {
    const char *name;
    int (*make)(void);
    int keeps_device;
} changes[] = {
    {"user", user, 1}, {"groups", groups, 1}, {"bounds", bounds, 1}, {"secure", secure, 1},
    {"root", root, 1}, {"jail", jail, 0},     {"mounts", mounts, 1},
};

/* Streams from before a change carry data as before, and later ones are made. */
static void change(size_t number) {
    struct ends before = connected(), after;
    passes(before.client, before.server);
    CHECK(changes[number].make() == 0);
    for (int i = 0; i < 1000; i++) {
        passes(before.client, before.server);
        passes(before.server, before.client);
    }
    after = connected();
    passes(after.client, after.server);
    passes(after.server, after.client);
    passes(before.client, before.server);
    CHECK(is_rsocket(after.client) == changes[number].keeps_device);
    CHECK(shutdown(before.client, SHUT_WR) == 0);
    CHECK(recv(before.server, &(char){0}, 1, 0) == 0);
}

static void identities(void) {
    for (size_t number = 0; number < sizeof changes / sizeof *changes; number++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            change(number);
            exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0)
            fprintf(stderr, "%s\n", changes[number].name);
        CHECK(status == 0);
    }
}

/* The kernel gives connections to the credentials of the opener alone: the listener fails. */
static void listener(void) {
    struct sockaddr_in name;
    int listening = listener_at(&name), client;
    CHECK(user() == 0);
    client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == -1 && errno == EINPROGRESS);
    CHECK(accept(listening, NULL, NULL) == -1 && errno == EACCES);
    /* The address is free after the close, as TCP's is. */
    CHECK(close(client) == 0 && close(listening) == 0);
    listening = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && listen(listening, 4) == 0);
    client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    passes(client, accept(listening, NULL, NULL));
    CHECK(is_rsocket(client));
}

/* A socket bound before a change, as squid's, listens by TCP. */
static void bound(void) {
    struct sockaddr_in name = address;
    socklen_t length = sizeof name;
    int listening = socket(AF_INET, SOCK_STREAM, 0), client, server;
    CHECK(bind(listening, (struct sockaddr *)&name, sizeof name) == 0 && is_rsocket(listening));
    CHECK(getsockname(listening, (struct sockaddr *)&name, &length) == 0);
    CHECK(user() == 0 && listen(listening, 4) == 0 && !is_rsocket(listening));
    client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(client, (struct sockaddr *)&name, sizeof name) == 0);
    server = accept(listening, NULL, NULL);
    passes(client, server);
    passes(server, client);
    CHECK(!is_rsocket(client) && !is_rsocket(server));
}

static int count_of(const char *folder) {
    int count = 0;
    DIR *entries = opendir(folder);
    CHECK(entries != NULL);
    while (readdir(entries) != NULL)
        count++;
    CHECK(closedir(entries) == 0);
    return count;
}

/* A change of the effective user, after which the kernel compares other credentials. */
static void toggle(void) { CHECK(seteuid(geteuid() == 0 ? 1000 : 0) == 0); }

/* A server that changes its effective user for each connection has no more threads and descriptors than its streams take. */
static void toggles(void) {
    enum { CHANGES = 100, MAX_ENGINES = 16 };
    struct ends kept[MAX_ENGINES + 1];
    int threads = 0, descriptors = 0, streams = 0;
    alarm(60);
    for (int i = 0; i < CHANGES; i++) {
        struct ends ends = connected();
        passes(ends.client, ends.server);
        CHECK(is_rsocket(ends.client) && is_rsocket(ends.server));
        CHECK(close(ends.client) == 0 && close(ends.server) == 0);
        toggle();
        if (i == MAX_ENGINES - 1) {
            threads = count_of("/proc/self/task");
            descriptors = count_of("/proc/self/fd");
        }
    }
    /* Those of closed streams end a little later. */
    CHECK(count_of("/proc/self/task") <= threads + 2 * MAX_ENGINES);
    CHECK(count_of("/proc/self/fd") <= descriptors + 12 * MAX_ENGINES);
    do {
        CHECK(streams <= MAX_ENGINES);
        toggle();
        kept[streams] = connected();
    } while (is_rsocket(kept[streams++].client));
    CHECK(streams > MAX_ENGINES / 2);
    for (int i = 0; i < streams; i++) {
        passes(kept[i].client, kept[i].server);
        passes(kept[i].server, kept[i].client);
        CHECK(close(kept[i].client) == 0 && close(kept[i].server) == 0);
    }
    for (struct ends ends = connected(); !is_rsocket(ends.client); ends = connected()) {
        CHECK(close(ends.client) == 0 && close(ends.server) == 0);
        usleep(10000);
    }
}

static const struct part parts[] = {
    {"jumping", jumping}, {"identities", identities}, {"listener", listener}, {"bound", bound}, {"toggles", toggles},
};

int main(int argc, char **argv) {
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
