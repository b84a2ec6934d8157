/* What generated kernels are called with. Generated files are header-free and repeat this struct
 * (docs/kernels.md). */
#ifndef KORCH_KERNEL_H
#define KORCH_KERNEL_H

#include <stdint.h>

typedef void (*korch_body)(void *context, int64_t task, int64_t worker);

typedef struct korch_runtime {
  uint32_t version; /* 1 */
  uint32_t threads; /* workers that parallel_for may use */
  char *scratch;    /* of worker w: scratch + w * scratch_stride, 64-byte aligned */
  int64_t scratch_stride;
  void *pool;
  /* calls body(context, task, worker) for each task in 0..tasks-1; returns when all are done. Not nested. */
  void (*parallel_for)(const struct korch_runtime *runtime, int64_t tasks, korch_body body, void *context);
} korch_runtime;

typedef void (*korch_kernel)(const korch_runtime *runtime, char *const *p);
typedef void (*korch_entry)(const korch_runtime *runtime, char *const *io, char *arena, const char *weights);

/* For tools that time single kernels: a table with up to `threads` workers and their scratch (NULL when there
 * is no memory), and `repeats` calls of a kernel in the state of a run (pool held, floating-point control set).
 * `seconds`, unless NULL, gets the time of each call. Returns the threads that took part. */
#pragma GCC visibility push(default)
korch_runtime *korch_runtime_new(int threads, int64_t worker_scratch_bytes);
void korch_runtime_free(korch_runtime *runtime);
int korch_call(const korch_runtime *runtime, korch_kernel kernel, char *const *p, int64_t repeats, double *seconds);
#pragma GCC visibility pop

#endif
