// What every generated file begins with: fixed-width types, the run-time table, the memory routines.

#define FN static inline __attribute__((always_inline))
#define KORCH_SCALAR static __attribute__((noinline))

typedef __INT8_TYPE__ int8_t; typedef __INT16_TYPE__ int16_t; typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t; typedef __UINT8_TYPE__ uint8_t; typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t; typedef __UINT64_TYPE__ uint64_t; typedef __SIZE_TYPE__ size_t;
typedef float f32; typedef double f64; typedef uint16_t f16; typedef uint16_t bf16; typedef uint8_t b8;
typedef int64_t i64; typedef int32_t i32; typedef int16_t i16; typedef int8_t i8;
typedef uint64_t u64; typedef uint32_t u32; typedef uint16_t u16; typedef uint8_t u8;

typedef struct korch_runtime {
  uint32_t version;
  uint32_t threads;
  char *scratch;
  int64_t scratch_stride;
  void *pool;
  void (*parallel_for)(const struct korch_runtime *runtime, int64_t tasks,
                       void (*body)(void *context, int64_t task, int64_t worker), void *context);
} korch_runtime;

/* Runs body(context, task, worker) for each task; one task runs at once on the caller. */
FN void korch_parallel(const korch_runtime *runtime, int64_t tasks,
                       void (*body)(void *context, int64_t task, int64_t worker), void *context) {
  if (tasks == 1) body(context, 0, 0);
  else if (tasks > 1) runtime->parallel_for(runtime, tasks, body, context);
}

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
typedef $T v$T __attribute__((ext_vector_type(W)));

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
typedef $T korch_any_$T __attribute__((ext_vector_type(W), aligned(1)));

/* A bool in registers is a mask, 0 or -1 in the 32-bit lane; in memory it is the byte 0 or 1. */
typedef vi32 vb8;

typedef _Bool korch_bits __attribute__((ext_vector_type(W)));

/* The compiler may call these for copies and fills that it recognises; no C library is linked. */
typedef uint8_t korch_block __attribute__((ext_vector_type(4 * W), aligned(1)));
typedef uint64_t korch_word __attribute__((aligned(1)));
#define KORCH_PLAIN _Pragma("clang loop vectorize(disable) unroll(disable)")
#define KORCH_OWN(name) __attribute__((no_builtin(name)))
#define KORCH_BLOCK sizeof(korch_block)

KORCH_OWN("memcpy") void *memcpy(void *restrict to, const void *restrict from, size_t n) {
  char *t = to; const char *f = from;
  size_t i = 0;
  if (n >= KORCH_BLOCK) {
    KORCH_PLAIN for (; i < n - KORCH_BLOCK; i += KORCH_BLOCK) *(korch_block *)(t + i) = *(const korch_block *)(f + i);
    *(korch_block *)(t + n - KORCH_BLOCK) = *(const korch_block *)(f + n - KORCH_BLOCK);
    return to;
  }
  KORCH_PLAIN for (; i + 8 <= n; i += 8) *(korch_word *)(t + i) = *(const korch_word *)(f + i);
  KORCH_PLAIN for (; i < n; i++) t[i] = f[i];
  return to;
}

KORCH_OWN("memset") void *memset(void *to, int value, size_t n) {
  char *t = to;
  size_t i = 0;
  if (n >= KORCH_BLOCK) {
    korch_block v = (korch_block)(uint8_t)value;
    KORCH_PLAIN for (; i < n - KORCH_BLOCK; i += KORCH_BLOCK) *(korch_block *)(t + i) = v;
    *(korch_block *)(t + n - KORCH_BLOCK) = v;
    return to;
  }
  KORCH_PLAIN for (; i < n; i++) t[i] = (char)value;
  return to;
}

KORCH_OWN("memmove") void *memmove(void *to, const void *from, size_t n) {
  char *t = to; const char *f = from;
  size_t i = 0;
  if ((size_t)t - (size_t)f >= n) {
    KORCH_PLAIN for (; i + KORCH_BLOCK <= n; i += KORCH_BLOCK) *(korch_block *)(t + i) = *(const korch_block *)(f + i);
    KORCH_PLAIN for (; i < n; i++) t[i] = f[i];
    return to;
  }
  KORCH_PLAIN for (; n >= KORCH_BLOCK; n -= KORCH_BLOCK)
    *(korch_block *)(t + n - KORCH_BLOCK) = *(const korch_block *)(f + n - KORCH_BLOCK);
  KORCH_PLAIN for (; n > 0; n--) t[n - 1] = f[n - 1];
  return to;
}

KORCH_OWN("memcmp") int memcmp(const void *a, const void *b, size_t n) {
  const uint8_t *x = a, *y = b;
  KORCH_PLAIN for (size_t i = 0; i < n; i++) if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  return 0;
}
