/* The process's thread pool and the state in which kernels run. */
#ifndef KORCH_POOL_H
#define KORCH_POOL_H

#include "kernel.h"

enum { KORCH_MAX_THREADS = 256 };

/* From korch_begin to korch_end a caller holds the pool and the floating-point control register is the
 * kernels'. `table->threads` and `table->parallel_for` say what the caller got: alone, it is 1. */
typedef struct korch_session {
  korch_runtime table;
  uint64_t control; /* the caller's register */
  int holds_pool;
} korch_session;

void korch_begin(korch_session *session, const korch_runtime *wanted);
void korch_end(korch_session *session);

#endif
