#include "pool.h"

#include "korch.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A worker owns one slot. The caller fills it and opens it; whoever takes it, the worker or a caller that has
 * finished its own share first, runs the range. So a worker that the system does not schedule delays nothing it
 * has not begun. */
enum { IDLE, OPEN, TAKEN, ASLEEP };

typedef struct {
  _Alignas(128) _Atomic uint32_t state; /* also the futex that the worker sleeps on; 128: lines come in pairs */
  int64_t begin, end;
  korch_body body;
  void *context;
} slot;

static const int64_t SPIN_NANOSECONDS = 80000;
static const int PAUSES_PER_LOOK = 32; /* between looks at the clock */

static slot slots[KORCH_MAX_THREADS]; /* slots[0] is the caller's and not used */
static int started = 1;               /* workers, with the caller; changed only by the holder of the pool */
static int processors = 1;
static _Atomic int held;
static _Atomic int owner; /* the process that the workers live in; -1 while it is being changed */

static korch_parallel_for host_parallel_for; /* NULL: the pool above */
static void *host;

static void pause_a_little(void) {
#if defined(__x86_64__)
  __asm__ volatile("pause");
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory"); /* about as long as x86's pause; `yield` is nothing on most cores */
#endif
}

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* Exceptions masked, round to nearest, no flush to zero. */
static uint64_t set_control(void) {
#if defined(__x86_64__)
  uint32_t old, new = 0x1f80;
  __asm__ volatile("stmxcsr %0" : "=m"(old));
  __asm__ volatile("ldmxcsr %0" ::"m"(new));
  return old;
#elif defined(__aarch64__)
  uint64_t old, new = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(old));
  __asm__ volatile("msr fpcr, %0" ::"r"(new));
  return old;
#else
#error "Korch runs on x86-64 and aarch64"
#endif
}

static void restore_control(uint64_t old) {
#if defined(__x86_64__)
  uint32_t narrow = (uint32_t)old;
  __asm__ volatile("ldmxcsr %0" ::"m"(narrow));
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" ::"r"(old));
#endif
}

/* Whether the slot was open and is now ours. */
static int take(slot *s) {
  uint32_t expected = OPEN;
  return atomic_load_explicit(&s->state, memory_order_relaxed) == OPEN &&
         atomic_compare_exchange_strong_explicit(&s->state, &expected, TAKEN, memory_order_acquire,
                                                 memory_order_relaxed);
}

static void run_slot(slot *s, int64_t worker) {
  for (int64_t task = s->begin; task < s->end; task++) s->body(s->context, task, worker);
  atomic_store_explicit(&s->state, IDLE, memory_order_release);
}

/* Spins until the slot opens, or for as long as is worth it; then sleeps. */
static void wait_for_work(slot *s, int64_t spin) {
  int64_t end = now() + spin;
  do {
    for (int k = 0; k < PAUSES_PER_LOOK; k++) {
      if (atomic_load_explicit(&s->state, memory_order_relaxed) == OPEN) return;
      pause_a_little();
    }
  } while (now() < end);
  uint32_t expected = IDLE;
  if (atomic_compare_exchange_strong(&s->state, &expected, ASLEEP))
    syscall(SYS_futex, &s->state, FUTEX_WAIT_PRIVATE, ASLEEP, NULL, NULL, 0);
}

static void *work(void *argument) {
  int64_t worker = (int64_t)(intptr_t)argument;
  slot *s = &slots[worker];
  int64_t spin = worker < processors ? SPIN_NANOSECONDS : 0;
  prctl(PR_SET_NAME, "korch-worker");
  set_control();
  for (;;) {
    if (take(s)) run_slot(s, worker);
    wait_for_work(s, spin);
  }
  return NULL;
}

static int start_worker(int worker) {
  pthread_t thread;
  pthread_attr_t attributes;
  sigset_t all, old;
  atomic_store(&slots[worker].state, IDLE);
  if (pthread_attr_init(&attributes)) return 0;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 2 << 20); /* musl's default is 128 KiB */
  sigfillset(&all); /* signals are the host's business */
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int failed = pthread_create(&thread, &attributes, work, (void *)(intptr_t)worker);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  pthread_attr_destroy(&attributes);
  return !failed;
}

/* Takes the pool if it is free, with `wanted` workers if the system lets them start. Returns how many there are,
 * 0 when the pool is taken. */
static int hold_pool(int wanted) {
  int self = (int)getpid(), old = atomic_load(&owner);
  if (old != self) { /* first use, or a child of fork, where no worker lives */
    if (old == -1 || !atomic_compare_exchange_strong(&owner, &old, -1)) return 0;
    started = 1;
    processors = korch_default_threads();
    atomic_store(&held, 0);
    atomic_store(&owner, self);
  }
  if (atomic_load_explicit(&held, memory_order_relaxed) || atomic_exchange(&held, 1)) return 0;
  while (started < wanted && start_worker(started)) started++;
  return started < wanted ? started : wanted;
}

static void release_pool(void) { atomic_store(&held, 0); }

static void alone_parallel_for(const korch_runtime *runtime, int64_t tasks, korch_body body, void *context) {
  (void)runtime;
  for (int64_t task = 0; task < tasks; task++) body(context, task, 0);
}

/* The first task of worker w: as equal shares as can be, without overflow. */
static int64_t share(int64_t tasks, int64_t workers, int64_t w) {
  int64_t rest = tasks % workers;
  return tasks / workers * w + (w < rest ? w : rest);
}

static void pool_parallel_for(const korch_runtime *runtime, int64_t tasks, korch_body body, void *context) {
  int64_t workers = tasks < runtime->threads ? tasks : runtime->threads;
  if (workers <= 1) {
    alone_parallel_for(runtime, tasks, body, context);
    return;
  }
  for (int64_t w = 1; w < workers; w++) {
    slot *s = &slots[w];
    s->begin = share(tasks, workers, w);
    s->end = share(tasks, workers, w + 1);
    s->body = body;
    s->context = context;
    if (atomic_exchange_explicit(&s->state, OPEN, memory_order_acq_rel) == ASLEEP)
      syscall(SYS_futex, &s->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  }
  int64_t own = share(tasks, workers, 1);
  for (int64_t task = 0; task < own; task++) body(context, task, 0);
  for (int64_t w = 1; w < workers; w++)
    if (take(&slots[w])) run_slot(&slots[w], 0);
  for (int64_t w = 1; w < workers; w++) {
    for (int looks = 0; atomic_load_explicit(&slots[w].state, memory_order_acquire) == TAKEN; looks++) {
      pause_a_little();
      if (looks > 2000) sched_yield(); /* perhaps the worker waits for this processor */
    }
  }
}

typedef struct {
  int64_t tasks, workers;
  korch_body body;
  void *context;
} shares;

static void run_share(void *argument, int index) {
  const shares *s = argument;
  uint64_t control = set_control();
  int64_t end = share(s->tasks, s->workers, index + 1);
  for (int64_t task = share(s->tasks, s->workers, index); task < end; task++) s->body(s->context, task, index);
  restore_control(control);
}

static void hosted_parallel_for(const korch_runtime *runtime, int64_t tasks, korch_body body, void *context) {
  int64_t workers = tasks < runtime->threads ? tasks : runtime->threads;
  if (workers <= 1) {
    alone_parallel_for(runtime, tasks, body, context);
    return;
  }
  shares all = {tasks, workers, body, context};
  host_parallel_for(host, (int)workers, run_share, &all);
}

void korch_set_parallel_for(korch_parallel_for parallel_for, void *of_host) {
  host_parallel_for = parallel_for;
  host = of_host;
}

typedef struct {
  void (*call)(void *argument, int index);
  void *argument;
} calls;

static void run_call(void *context, int64_t task, int64_t worker) {
  (void)worker;
  const calls *c = context;
  c->call(c->argument, (int)task);
}

void korch_pool_parallel_for(void *unused, int count, void (*call)(void *, int), void *argument) {
  (void)unused;
  calls c = {call, argument};
  int threads = count > 1 ? hold_pool(count < KORCH_MAX_THREADS ? count : KORCH_MAX_THREADS) : 0;
  korch_runtime table = {.version = 1, .threads = (uint32_t)threads};
  if (threads) {
    pool_parallel_for(&table, count, run_call, &c);
    release_pool();
  } else {
    alone_parallel_for(&table, count, run_call, &c);
  }
}

void korch_begin(korch_session *session, const korch_runtime *wanted) {
  session->table = *wanted;
  session->holds_pool = 0;
  session->table.parallel_for = host_parallel_for ? hosted_parallel_for : alone_parallel_for;
  if (!host_parallel_for) {
    int threads = wanted->threads > 1 ? hold_pool((int)wanted->threads) : 0;
    session->table.threads = threads > 1 ? (uint32_t)threads : 1;
    session->holds_pool = threads > 0;
    if (threads > 1) session->table.parallel_for = pool_parallel_for;
  }
  session->control = set_control();
}

void korch_end(korch_session *session) {
  restore_control(session->control);
  if (session->holds_pool) release_pool();
}

korch_runtime *korch_runtime_new(int threads, int64_t worker_scratch_bytes) {
  if (threads < 1) threads = korch_default_threads();
  if (threads > KORCH_MAX_THREADS) threads = KORCH_MAX_THREADS;
  int64_t stride = (worker_scratch_bytes + 127) / 128 * 128; /* workers share no line */
  korch_runtime *runtime = calloc(1, sizeof *runtime);
  void *scratch = NULL;
  if (!runtime || posix_memalign(&scratch, 128, (size_t)(stride * threads + 128))) {
    free(runtime);
    return NULL;
  }
  *runtime = (korch_runtime){1, (uint32_t)threads, scratch, stride, NULL, alone_parallel_for};
  return runtime;
}

void korch_runtime_free(korch_runtime *runtime) {
  if (runtime) free(runtime->scratch);
  free(runtime);
}

int korch_call(const korch_runtime *runtime, korch_kernel kernel, char *const *p, int64_t repeats, double *seconds) {
  korch_session session;
  korch_begin(&session, runtime);
  for (int64_t k = 0; k < repeats; k++) {
    int64_t start = seconds ? now() : 0;
    kernel(&session.table, p);
    if (seconds) seconds[k] = 1e-9 * (double)(now() - start);
  }
  korch_end(&session);
  return (int)session.table.threads;
}
