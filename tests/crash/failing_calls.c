/* Calls of the system that fail while a file says so: LD_PRELOAD this, with FAULTS naming 16 bytes of
   (errno, which calls, how many of them are left, how many failed). Only regular files are touched by writes and syncs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITES = 1, SYNCS = 2, OPENS = 4 };
static volatile struct { int error, calls, left, failed; } *faults;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0) : -1;
    if (fd < 0) return;
    void *found = mmap(0, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) faults = found;
    close(fd);
}

static int fails(int call, int fd) {
    struct stat about;
    if (!faults || !faults->error || !(faults->calls & call)) return 0;
    if (fd >= 0 && (fstat(fd, &about) || !S_ISREG(about.st_mode))) return 0;
    if (__sync_fetch_and_sub(&faults->left, 1) <= 0) return 0;
    __sync_fetch_and_add(&faults->failed, 1);
    errno = faults->error;
    return 1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define WRITE(name, params, args) \
    ssize_t name params { REAL(name); return fails(WRITES, fd) ? -1 : real args; }
#define SYNC(name) int name(int fd) { REAL(name); return fails(SYNCS, fd) ? -1 : real(fd); }
#define OPEN(name, params, args, last) \
    int name params { va_list rest; va_start(rest, last); int mode = va_arg(rest, int); va_end(rest); \
        REAL(name); return fails(OPENS, -1) ? -1 : real args; }

WRITE(write, (int fd, const void *data, size_t size), (fd, data, size))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRITE(pwritev, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
WRITE(pwritev64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at))
WRITE(pwritev2, (int fd, const struct iovec *v, int n, off_t at, int flags), (fd, v, n, at, flags))
WRITE(pwritev64v2, (int fd, const struct iovec *v, int n, off64_t at, int flags), (fd, v, n, at, flags))
SYNC(fsync)
SYNC(fdatasync)
OPEN(open, (const char *path, int flags, ...), (path, flags, mode), flags)
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), flags)
OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode), flags)
OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode), flags)
int accept4(int fd, struct sockaddr *a, socklen_t *n, int flags) { REAL(accept4); return fails(OPENS, -1) ? -1 : real(fd, a, n, flags); }
