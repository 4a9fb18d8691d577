/* A thread blocked in a call on a descriptor, for tests in C. The program that includes this file defines CHECK. */

#ifndef BLOCKED_H
#define BLOCKED_H

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

struct blocked {
    void (*call)(int);
    int fd;
    /* Number of the thread; 0 before its start. */
    volatile int thread;
};

/* Main function of the thread. */
static void *block(void *argument) {
    struct blocked *blocked = argument;
    blocked->thread = gettid();
    blocked->call(blocked->fd);
    return NULL;
}

/* Waits until the thread sleeps. */
static void wait_asleep(const struct blocked *blocked) {
    char path[100], state = 0;
    while (state != 'S') {
        usleep(1000);
        if (!blocked->thread)
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", blocked->thread);
        FILE *stat = fopen(path, "r");
        CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        fclose(stat);
    }
}

#endif
