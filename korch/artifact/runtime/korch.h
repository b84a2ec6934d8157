/* Runs models that Korch has optimized: load a .korch file, make a context, run.
 *
 *   char error[256];
 *   korch_model *model = korch_load("model.korch", error, sizeof error);
 *   korch_context *context = model ? korch_context_new(model, 0, 0, error, sizeof error) : NULL;
 *   if (!context) { fprintf(stderr, "%s\n", error); return 1; }
 *   korch_run(context, inputs, outputs);
 *
 * Functions that can fail return NULL or a number that is not 0, and write one line to `error`, which may be NULL.
 * An artifact holds native code: load only files whose origin you trust. Linux on x86-64 and aarch64.
 */
#ifndef KORCH_H
#define KORCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct korch_model korch_model;     /* immutable; may be shared by threads */
typedef struct korch_context korch_context; /* the memory of one caller at a time */

typedef struct korch_tensor_info {
  const char *name;
  const char *dtype; /* float32, float64, float16, bfloat16, int8 to int64, uint8 to uint64, bool (one byte);
                        formats of eight bits or less as ml_dtypes names them, one element in a byte */
  int rank;
  const int64_t *shape; /* row-major */
  size_t bytes;
} korch_tensor_info;

/* Checks the header, the plans and the code, but not the weights, which are only mapped: see korch_check_weights.
 * Do not change the file in place while it is loaded; replace it by renaming another. */
korch_model *korch_load(const char *path, char *error, size_t error_size);
/* Reads all the weights and compares them with their hash; 0 when they are sound. */
int korch_check_weights(const korch_model *model, char *error, size_t error_size);
/* After the last of its contexts is freed. */
void korch_free(korch_model *model);

/* A file holds plans: one for each set of input shapes, in the machine's best instruction set. */
int korch_plan_count(const korch_model *model);
/* The position of plan number `plan` in the file's manifest, which also holds plans for other machines. */
int korch_plan_position(const korch_model *model, int plan);
int korch_input_count(const korch_model *model);
int korch_output_count(const korch_model *model);
const korch_tensor_info *korch_input(const korch_model *model, int plan, int index);
const korch_tensor_info *korch_output(const korch_model *model, int plan, int index);

/* threads: at most this many, the caller's included; 0 for as many as the plan was made for or the process may
 * use, whichever is less. Results do not depend on it. */
korch_context *korch_context_new(const korch_model *model, int plan, int threads, char *error, size_t error_size);
void korch_context_free(korch_context *context);

/* Computes the outputs. Each pointer is aligned for its element, and outputs overlap nothing else. Inputs are
 * borrowed during the call. Returns 0, or 1 when another thread is running this context. */
int korch_run(korch_context *context, const void *const *inputs, void *const *outputs);

/* The threads that the process may use: its affinity and its container's quota, at least 1. */
int korch_default_threads(void);

/* One thread pool belongs to the process. It starts on first use and again after fork, spins for some 80
 * microseconds after its last work, then sleeps. While one caller's run holds it, other callers run alone.
 * A host that has its own pool can lend it: `parallel_for(host, count, call, argument)` calls call(argument, k)
 * once for each k in 0..count-1, in any order and on any threads, and returns when all are done. NULL: Korch's
 * own again. Not while a model runs. */
typedef void (*korch_parallel_for)(void *host, int count, void (*call)(void *argument, int index), void *argument);
void korch_set_parallel_for(korch_parallel_for parallel_for, void *host);
/* Korch's own pool as such a function, to lend it to another copy of this library; `host` is not used. */
void korch_pool_parallel_for(void *host, int count, void (*call)(void *argument, int index), void *argument);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
