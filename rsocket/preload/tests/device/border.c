/* Calls that are left by a jump out of a handler, and calls of a process with other credentials than at the start. */

#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>

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

/* The kernel refuses calls on a device that other credentials have opened: no byte seems to be sent. */
static void credentials(void) {
    struct ends ends = connected();
    char byte = 0;
    passes(ends.client, ends.server);
    CHECK(setgid(1000) == 0 && setuid(1000) == 0);
    CHECK(send(ends.client, &byte, 1, 0) == -1 && errno == EACCES);
    CHECK(send(ends.client, &byte, 1, 0) == -1 && errno == EACCES);
    CHECK(recv(ends.client, &byte, 1, 0) == -1 && errno == EACCES);
    CHECK(send(ends.server, &byte, 1, 0) == -1 && errno == EACCES);
}

static const struct part parts[] = {{"jumping", jumping}, {"credentials", credentials}};

int main(int argc, char **argv) {
    return run_part(parts, sizeof parts / sizeof *parts, argc, argv);
}
