"""A wall clock that a test sets, of real processes: a few lines of C, preloaded, add an offset to what the system says."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["Clock"]

CLOCK_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile int64_t *ahead;
static int (*real)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
    real = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("SOAK_CLOCK");
    int fd = path ? open(path, O_RDONLY) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    ahead = map == MAP_FAILED ? 0 : map;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int told = real(id, at);
    if (!told && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *ahead;
    return told;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """The wall clock of the processes that carry `environment`; `set` moves it at once."""

    def __init__(self, folder: Path) -> None:
        self.environment: dict[str, str] = {}
        self._map: mmap.mmap | None = None
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None or sys.platform != "linux":
            return
        source, library, offset = folder / "clock.c", folder / "clock.so", folder / "clock.offset"
        source.write_text(CLOCK_SOURCE)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        offset.write_bytes(bytes(8))
        with offset.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)
        self.environment = {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(offset)}

    def set(self, ahead_s: int) -> bool:
        """False: there is no such clock here."""
        if self._map is None:
            return False
        self._map[:] = struct.pack("q", ahead_s)
        return True
