/* Loaded before libc: steps the wall clock and slows fsync down, as a file says that can be changed
   while the process runs. Two numbers: seconds to add to the wall clock, microseconds that each
   fsync takes longer. The monotonic clock stays as it is, as with a real step. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *control;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_SHIM");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(0, 16, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) control = at;
    close(fd);
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *at) {
    REAL(clock_gettime);
    int failed = real(clock, at);
    if (!failed && control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        at->tv_sec += control[0];
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    REAL(gettimeofday);
    int failed = real(at, zone);
    if (!failed && control && at) at->tv_sec += control[0];
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static void slow(void) {
    if (control && control[1] > 0) usleep((useconds_t)control[1]);
}

int fsync(int fd) {
    REAL(fsync);
    slow();
    return real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    slow();
    return real(fd);
}
