#include "korch.h"

#include <fcntl.h>
#include <string.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The start of a file as text; empty when it cannot be read. */
static void read_text(const char *path, char *text, size_t size) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = 0, got = 0;
  while (file >= 0 && (size_t)got + 1 < size && (n = read(file, text + got, size - 1 - (size_t)got)) > 0) got += n;
  if (file >= 0) close(file);
  text[got] = 0;
}

/* A decimal number, or -1 where there is none (`max`, or a missing file). */
static int64_t number(const char *text) {
  int64_t value = -1;
  while (*text == ' ') text++;
  for (; *text >= '0' && *text <= '9' && value < INT64_C(1) << 50; text++)
    value = (value < 0 ? 0 : value) * 10 + (*text - '0');
  return value;
}

static int64_t at_least_one(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return INT64_MAX;
  return quota >= period ? quota / period : 1; /* a spinning thread beyond the quota stops all of them */
}

/* cgroup v2: "QUOTA PERIOD" or "max PERIOD"; v1: two files. */
static int64_t group_limit(const char *root, const char *group) {
  char path[1200], text[64];
  snprintf(path, sizeof path, "%s%s/cpu.max", root, group);
  read_text(path, text, sizeof text);
  if (text[0]) {
    const char *period = strchr(text, ' ');
    return at_least_one(number(text), period ? number(period) : -1);
  }
  snprintf(path, sizeof path, "%s%s/cpu.cfs_quota_us", root, group);
  read_text(path, text, sizeof text);
  int64_t quota = number(text);
  snprintf(path, sizeof path, "%s%s/cpu.cfs_period_us", root, group);
  read_text(path, text, sizeof text);
  return at_least_one(quota, number(text));
}

/* The least of the limits of a group and those above it. */
static int64_t hierarchy_limit(const char *root, char *group) {
  int64_t least = INT64_MAX;
  for (;;) {
    int64_t limit = group_limit(root, group);
    if (limit < least) least = limit;
    char *slash = strrchr(group, '/');
    if (!slash) return least;
    *slash = 0;
  }
}

/* Whether one of the comma-separated controllers is `cpu`. */
static int has_cpu(const char *list, const char *end) {
  for (const char *at = list; at < end; at++)
    if ((at == list || at[-1] == ',') && !strncmp(at, "cpu", 3) && (at + 3 == end || at[3] == ',')) return 1;
  return 0;
}

/* The container's quota in whole processors. Each line of /proc/self/cgroup is ID:CONTROLLERS:GROUP, with no
 * controllers for version 2. */
static int64_t quota(void) {
  static const char *const roots[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
  char text[8192], group[1024];
  int64_t least = INT64_MAX;
  read_text("/proc/self/cgroup", text, sizeof text);
  for (char *line = text; line && *line;) {
    char *next = strchr(line, '\n');
    if (next) *next++ = 0;
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (path && path == controllers + 1) {
      snprintf(group, sizeof group, "%s", path + 1);
      int64_t limit = hierarchy_limit("/sys/fs/cgroup", group);
      if (limit < least) least = limit;
    } else if (path && has_cpu(controllers + 1, path)) {
      for (int k = 0; k < 2; k++) {
        snprintf(group, sizeof group, "%s", path + 1);
        int64_t limit = hierarchy_limit(roots[k], group);
        if (limit < least) least = limit;
      }
    }
    line = next;
  }
  return least;
}

int korch_default_threads(void) {
  unsigned char mask[1024] = {0}; /* 8192 processors */
  long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
  int64_t count = 0;
  for (long k = 0; k < bytes * 8; k++) count += mask[k / 8] >> k % 8 & 1;
  int64_t limit = quota();
  if (limit < count) count = limit;
  return count < 1 ? 1 : (int)count;
}
