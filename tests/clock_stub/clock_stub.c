/*
 * A clock on the wall that a test sets: preloaded (LD_PRELOAD) into the program under test, it adds the seconds that stand
 * in the file named by CLOCK_STUB to the time of day. The file is read at each call, so the clock jumps while the program
 * runs. Other clocks stay as they are, as they do when somebody sets the real one.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long long offset(void) {
    long long seconds = 0;
    const char *path = getenv("CLOCK_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) {
        if (fscanf(file, "%lld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += (time_t)offset();
    return result;
}
