// A file system that refuses: file_system.py says which calls, below which folder, with which errno.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// The errno with which `call` fails on `path`; 0: it does not. REFUSED is "call=errno,...".
static int refusal(const char *call, const char *path) {
  const char *folder = getenv("REFUSED_BELOW"), *from = getenv("REFUSED_FROM");
  const char *found = getenv("REFUSED");
  struct stat about;
  if (!folder || !found || !path || strncmp(path, folder, strlen(folder))) return 0;
  if (from && syscall(SYS_newfstatat, AT_FDCWD, from, &about, 0)) return 0;
  for (size_t length = strlen(call); (found = strstr(found, call)); found += length)
    if (found[length] == '=') return atoi(found + length + 1);
  return 0;
}

static int refusal_of(const char *call, int file) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length < 0 ? 0 : length] = 0;
  return refusal(call, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSE(error) \
  do { int found = (error); if (found) { errno = found; return -1; } } while (0)
#define ON_PATH(name, call, parameters, arguments) \
  int name parameters { REFUSE(refusal(call, path)); return REAL(name) arguments; }
#define ON_FILE(type, name, parameters, arguments) \
  type name parameters { REFUSE(refusal_of(#name, file)); return REAL(name) arguments; }
#define ON_OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = va_arg(more, mode_t); \
    va_end(more); \
    if ((flags & O_EXCL) && !access(path, F_OK)) REFUSE(EEXIST); \
    if (flags & (O_WRONLY | O_RDWR | O_CREAT)) REFUSE(refusal("write", path)); \
    return REAL(name)(path, flags, mode); \
  }

ON_OPEN(open)
ON_OPEN(open64)
ON_PATH(unlink, "unlink", (const char *path), (path))
ON_PATH(chmod, "chmod", (const char *path, mode_t mode), (path, mode))
ON_PATH(mkdir, "write", (const char *path, mode_t mode), (path, mode))
ON_PATH(rename, "write", (const char *path, const char *to), (path, to))
ON_PATH(utimensat, "write", (int at, const char *path, const struct timespec times[2], int flags),
        (at, path, times, flags))
ON_PATH(link, "link", (const char *path, const char *to), (path, to))
ON_FILE(int, fchmod, (int file, mode_t mode), (file, mode))
ON_FILE(int, fsync, (int file), (file))
ON_FILE(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
ON_FILE(int, flock, (int file, int operation), (file, operation))
