/* Loading and running a .korch file. The layout is in docs/artifact.md; here the header and the plan table are
 * read, never the manifest. Every number is checked before it is used, so a damaged file gives an error. */
#include "korch.h"
#include "pool.h"
#include "sha256.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define MACHINE "x86_64"
#elif defined(__aarch64__)
#define MACHINE "aarch64"
#endif

enum { HEADER_SIZE = 64, HASHED_HEADER = 32, MAX_RANK = 64, FEATURES_SIZE = 8192 };

typedef struct {
  const unsigned char *at;
  uint64_t size;
  const unsigned char *hash;
} section;

typedef struct {
  int position; /* in the file */
  const char *machine, *features;
  int feature_count;
  uint64_t threads, arena_bytes, scratch_bytes;
  section code, weights;
  korch_tensor_info *tensors; /* inputs, then outputs */
  void *library;
  int file; /* the library's; open as long as it, since glibc tells libraries apart by /proc/self/fd/N */
  korch_entry entry;
} plan;

struct korch_model {
  const char *path;
  const unsigned char *map;
  uint64_t size;
  uint64_t input_count, output_count;
  int plan_count;
  plan *plans;
};

struct korch_context {
  const plan *of;
  korch_runtime table;
  char *memory, *arena;
  size_t memory_size;
  uint64_t input_count, output_count;
  atomic_int running;
  char *io[];
};

/* Errors */

typedef struct {
  char *text;
  size_t size;
} error_line;

static void *fail(error_line error, const char *format, ...) {
  va_list values;
  va_start(values, format);
  if (error.text && error.size) vsnprintf(error.text, error.size, format, values);
  va_end(values);
  return NULL;
}

/* Reading the plan table: 64-bit little-endian numbers, and strings that are padded with at least one zero byte
 * to a multiple of 8. */

typedef struct {
  const unsigned char *at, *end;
  int bad; /* set by the first read past the end or out of range; then all reads give nothing */
} reader;

static const void *take_bytes(reader *r, uint64_t size) {
  if (r->bad || size > (uint64_t)(r->end - r->at)) {
    r->bad = 1;
    return NULL;
  }
  const void *at = r->at;
  r->at += size;
  return at;
}

static uint64_t take_number(reader *r, uint64_t most) {
  uint64_t value = 0;
  const void *at = take_bytes(r, sizeof value);
  if (at) memcpy(&value, at, sizeof value);
  if (value > most) r->bad = 1;
  return r->bad ? 0 : value;
}

static const char *take_string(reader *r) {
  uint64_t length = take_number(r, 1 << 20);
  const char *text = take_bytes(r, length / 8 * 8 + 8);
  if (text && (memchr(text, 0, length) || text[length])) r->bad = 1;
  return r->bad ? "" : text;
}

static section take_section(reader *r, const korch_model *model) {
  uint64_t offset = take_number(r, model->size), size = take_number(r, model->size);
  const unsigned char *hash = take_bytes(r, 32);
  if (offset % 64 || size > model->size - offset) r->bad = 1;
  return r->bad ? (section){0} : (section){model->map + offset, size, hash};
}

static uint64_t element_size(const char *dtype) {
  static const struct {
    const char *name;
    uint64_t size;
  } known[] = {{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"int64", 8},
               {"int32", 4},   {"int16", 2},   {"int8", 1},    {"uint64", 8},   {"uint32", 4},
               {"uint16", 2},  {"uint8", 1},   {"bool", 1},
               /* one element in a byte */
               {"float8_e4m3fn", 1}, {"float8_e4m3fnuz", 1}, {"float8_e5m2", 1}, {"float8_e5m2fnuz", 1},
               {"float8_e8m0fnu", 1}, {"float4_e2m1fn", 1}, {"int4", 1}, {"uint4", 1}, {"int2", 1}, {"uint2", 1}};
  for (size_t k = 0; k < sizeof known / sizeof *known; k++)
    if (!strcmp(dtype, known[k].name)) return known[k].size;
  return 0;
}

/* The shape that follows in the table, and with it the tensor's size. */
static void take_shape(reader *r, korch_tensor_info *tensor) {
  uint64_t rank = take_number(r, MAX_RANK), bytes = element_size(tensor->dtype);
  const int64_t *shape = take_bytes(r, rank * sizeof *shape);
  for (uint64_t k = 0; shape && k < rank; k++) {
    if (shape[k] < 0 || __builtin_mul_overflow(bytes, (uint64_t)shape[k], &bytes) || bytes >> 60) r->bad = 1;
  }
  tensor->rank = (int)rank;
  tensor->shape = shape;
  tensor->bytes = bytes;
}

static int count_words(const char *text) {
  int count = 0;
  for (; *text; text++) count += *text != ' ' && (text[1] == ' ' || !text[1]);
  return count;
}

static void take_plan(reader *r, korch_model *model, plan *p, const korch_tensor_info *tensors) {
  p->machine = take_string(r);
  p->features = take_string(r);
  p->feature_count = count_words(p->features);
  p->threads = take_number(r, KORCH_MAX_THREADS);
  p->arena_bytes = take_number(r, UINT64_C(1) << 46);
  p->scratch_bytes = take_number(r, UINT64_C(1) << 36);
  p->code = take_section(r, model);
  p->weights = take_section(r, model);
  uint64_t count = model->input_count + model->output_count;
  if (r->bad || !(p->tensors = calloc(count + 1, sizeof *p->tensors))) {
    r->bad = 1;
    return;
  }
  memcpy(p->tensors, tensors, count * sizeof *tensors);
  for (uint64_t k = 0; k < count; k++) take_shape(r, &p->tensors[k]);
}

/* Reads the whole table into model->plans; 0 when something is out of range. */
static int take_table(reader r, korch_model *model) {
  uint64_t room = (uint64_t)(r.end - r.at) / 16; /* a tensor or a plan takes at least 16 bytes */
  model->input_count = take_number(&r, room);
  model->output_count = take_number(&r, room);
  uint64_t count = model->input_count + model->output_count, plans = take_number(&r, room);
  korch_tensor_info *tensors = calloc(count + 1, sizeof *tensors);
  model->plans = calloc(plans + 1, sizeof *model->plans);
  if (!tensors || !model->plans) r.bad = 1;
  for (uint64_t k = 0; !r.bad && k < count; k++) {
    tensors[k].name = take_string(&r);
    tensors[k].dtype = take_string(&r);
    if (!element_size(tensors[k].dtype)) r.bad = 1;
  }
  for (; !r.bad && (uint64_t)model->plan_count < plans; model->plan_count++) {
    plan *p = &model->plans[model->plan_count];
    p->position = model->plan_count;
    p->file = -1;
    take_plan(&r, model, p, tensors);
  }
  free(tensors);
  return !r.bad && r.at == r.end;
}

/* The plans that fit this machine */

/* The features that /proc/cpuinfo lists for the first processor, with a space before and after each. */
static void read_features(char text[FEATURES_SIZE]) {
  int file = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
  ssize_t n = 0, got = 0;
  while (file >= 0 && got + 16 < FEATURES_SIZE && (n = read(file, text + got, (size_t)(FEATURES_SIZE - 16 - got))) > 0)
    got += n;
  if (file >= 0) close(file);
  text[got] = 0;
  char *line = strstr(text, "\nflags");
  if (!line) line = strstr(text, "\nFeatures");
  char *colon = line ? strchr(line, ':') : NULL, *end = colon ? strchr(colon, '\n') : NULL;
  if (end) *end = 0;
  if (colon) memmove(text, colon + 1, strlen(colon + 1) + 1);
  else text[0] = 0;
  strcat(text, " ");
#if defined(__aarch64__)
  if (getauxval(AT_HWCAP) & 2) strcat(text, " asimd "); /* qemu-user shows the /proc/cpuinfo of its host */
#endif
}

/* Writes the words of `wanted` that are not in `features` to `missing`, and returns how many there are. */
static int missing_features(const char *wanted, const char *features, char *missing, size_t size) {
  int count = 0;
  missing[0] = 0;
  for (const char *word = wanted; *word;) {
    size_t length = strcspn(word, " ");
    char padded[64];
    snprintf(padded, sizeof padded, " %.*s ", (int)length, word);
    if (length && !strstr(features, padded)) {
      size_t used = strlen(missing);
      snprintf(missing + used, size - used, "%s%.*s", count++ ? " " : "", (int)length, word);
    }
    word += length + (word[length] == ' ');
  }
  return count;
}

static int same_inputs(const korch_model *model, const plan *a, const plan *b) {
  for (uint64_t k = 0; k < model->input_count; k++) {
    const korch_tensor_info *s = &a->tensors[k], *t = &b->tensors[k];
    if (s->rank != t->rank || memcmp(s->shape, t->shape, (size_t)s->rank * sizeof *s->shape)) return 0;
  }
  return 1;
}

/* Drops a plan that cannot run here, or that has a better one for the same shapes. */
static int is_kept(const korch_model *model, int k, const char *features) {
  char missing[512];
  const plan *p = &model->plans[k];
  if (strcmp(p->machine, MACHINE) || missing_features(p->features, features, missing, sizeof missing)) return 0;
  for (int j = 0; j < model->plan_count; j++) {
    const plan *q = &model->plans[j];
    if (j == k || strcmp(q->machine, MACHINE) || !same_inputs(model, p, q)) continue;
    if (missing_features(q->features, features, missing, sizeof missing)) continue;
    if (q->feature_count > p->feature_count || (q->feature_count == p->feature_count && j < k)) return 0;
  }
  return 1;
}

/* Keeps the plans for this machine; 0, with a reason, when there are none. */
static int choose_plans(korch_model *model, error_line error) {
  char features[FEATURES_SIZE], missing[512], fewest[512] = "";
  int least = -1, kept = 0;
  read_features(features);
  for (int k = 0; k < model->plan_count; k++) {
    if (strcmp(model->plans[k].machine, MACHINE)) continue;
    int count = missing_features(model->plans[k].features, features, missing, sizeof missing);
    if (least >= 0 && count >= least) continue;
    least = count;
    snprintf(fewest, sizeof fewest, "%s", missing);
  }
  if (least < 0) {
    const char *other = model->plan_count ? model->plans[0].machine : "no machine at all";
    fail(error, "%s is made for %s and this machine is " MACHINE "; optimize the model for it", model->path, other);
    return 0;
  }
  if (least > 0) {
    fail(error, "%s needs CPU features that this machine lacks: %s; optimize the model for it", model->path, fewest);
    return 0;
  }
  char *keep = calloc((size_t)model->plan_count, 1);
  if (!keep) {
    fail(error, "no memory to load %s", model->path);
    return 0;
  }
  for (int k = 0; k < model->plan_count; k++) keep[k] = (char)is_kept(model, k, features);
  for (int k = 0; k < model->plan_count; k++) {
    if (keep[k]) model->plans[kept++] = model->plans[k];
    else free(model->plans[k].tensors);
  }
  free(keep);
  model->plan_count = kept;
  return 1;
}

/* Code */

static int write_all(int file, const unsigned char *at, uint64_t size) {
  while (size) {
    ssize_t n = write(file, at, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return 0;
    at += n;
    size -= (uint64_t)n;
  }
  return 1;
}

/* Opens a library that is in memory: through an anonymous file, or through a temporary one where the system
 * refuses that. */
static void *open_library(plan *p) {
  char path[512];
  p->file = (int)syscall(SYS_memfd_create, "korch", 1u /* MFD_CLOEXEC */);
  if (p->file >= 0 && write_all(p->file, p->code.at, p->code.size)) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", p->file);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
  }
  if (p->file >= 0) close(p->file);
  const char *directory = getenv("TMPDIR");
  snprintf(path, sizeof path, "%s/korch-XXXXXX", directory && *directory ? directory : "/tmp");
  p->file = mkstemp(path);
  if (p->file < 0) return NULL;
  void *library = write_all(p->file, p->code.at, p->code.size) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  unlink(path);
  return library;
}

static int is_sound(const section *s) {
  unsigned char hash[32];
  korch_sha256(&(korch_bytes){s->at, s->size}, 1, hash);
  return !memcmp(hash, s->hash, sizeof hash);
}

static int load_code(const korch_model *model, plan *p, error_line error) {
  if (!is_sound(&p->code)) {
    fail(error, "%s is damaged: the hash of its code does not match; write it again", model->path);
    return 0;
  }
  if (!(p->library = open_library(p))) {
    const char *reason = dlerror();
    fail(error, "%s: its code cannot be loaded (%s)", model->path, reason ? reason : strerror(errno));
    return 0;
  }
  void *symbol = dlsym(p->library, "korch_run");
  memcpy(&p->entry, &symbol, sizeof symbol);
  if (!symbol) fail(error, "%s is damaged: its code has no korch_run; write it again", model->path);
  return symbol != NULL;
}

/* Loading */

static int check_header(const korch_model *model, uint64_t *manifest, uint64_t *table, error_line error) {
  static const char magic[8] = "KORCHv01";
  uint64_t numbers[3] = {0}; /* sizes of the manifest, the table, the file */
  unsigned char hash[32];
  if (model->size < sizeof magic || memcmp(model->map, magic, 6)) {
    fail(error, "%s is not a .korch file", model->path);
    return 0;
  }
  if (memcmp(model->map, magic, sizeof magic)) {
    fail(error, "%s has another format than 01, which this runtime reads; update korch, or optimize the model again",
         model->path);
    return 0;
  }
  if (model->size >= HEADER_SIZE) memcpy(numbers, model->map + sizeof magic, sizeof numbers);
  if (model->size < HEADER_SIZE || numbers[2] > model->size) {
    fail(error, "%s is truncated: it has %llu bytes of %llu; copy it again", model->path,
         (unsigned long long)model->size, (unsigned long long)(numbers[2] ? numbers[2] : HEADER_SIZE));
    return 0;
  }
  *manifest = numbers[0];
  *table = numbers[1];
  uint64_t room = model->size - HEADER_SIZE;
  int fits = numbers[2] == model->size && numbers[0] <= room && numbers[1] <= room - numbers[0] && !(numbers[0] % 8);
  if (fits) {
    korch_bytes pieces[2] = {{model->map, HASHED_HEADER}, {model->map + HEADER_SIZE, numbers[0] + numbers[1]}};
    korch_sha256(pieces, 2, hash);
  }
  if (!fits || memcmp(hash, model->map + HASHED_HEADER, sizeof hash)) {
    fail(error, "%s is damaged: the hash of its header does not match; write it again", model->path);
    return 0;
  }
  return 1;
}

static int map_file(korch_model *model, error_line error) {
  int file = open(model->path, O_RDONLY | O_CLOEXEC);
  int64_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
  void *map = size > 0 ? mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  int reason = errno;
  if (file >= 0) close(file);
  if (size == 0) {
    fail(error, "%s is not a .korch file: it is empty", model->path);
    return 0;
  }
  if (map == MAP_FAILED) {
    fail(error, "%s cannot be read: %s", model->path, strerror(reason));
    return 0;
  }
  model->map = map;
  model->size = (uint64_t)size;
  return 1;
}

static int load_into(korch_model *model, error_line error) {
  uint64_t manifest, table;
  if (!map_file(model, error) || !check_header(model, &manifest, &table, error)) return 0;
  const unsigned char *start = model->map + HEADER_SIZE + manifest;
  if (!take_table((reader){start, start + table, 0}, model)) {
    fail(error, "%s is damaged: its plan table is not valid; write it again", model->path);
    return 0;
  }
  if (!choose_plans(model, error)) return 0;
  for (int k = 0; k < model->plan_count; k++)
    if (!load_code(model, &model->plans[k], error)) return 0;
  return 1;
}

korch_model *korch_load(const char *path, char *text, size_t size) {
  error_line error = {text, size};
  korch_model *model = calloc(1, sizeof *model + strlen(path) + 1);
  if (!model) return fail(error, "no memory to load %s", path);
  char *copy = (char *)(model + 1);
  memcpy(copy, path, strlen(path) + 1);
  model->path = copy;
  if (load_into(model, error)) return model;
  korch_free(model);
  return NULL;
}

int korch_check_weights(const korch_model *model, char *text, size_t size) {
  for (int k = 0; k < model->plan_count; k++) {
    const section *weights = &model->plans[k].weights;
    if ((k && weights->at == model->plans[k - 1].weights.at) || is_sound(weights)) continue;
    fail((error_line){text, size}, "%s is damaged: the hash of its weights does not match; write it again", model->path);
    return 1;
  }
  return 0;
}

void korch_free(korch_model *model) {
  if (!model) return;
  for (int k = 0; k < model->plan_count; k++) {
    plan *p = &model->plans[k];
    if (p->library) dlclose(p->library);
    if (p->file >= 0) close(p->file);
    free(p->tensors);
  }
  free(model->plans);
  if (model->map) munmap((void *)model->map, model->size);
  free(model);
}

int korch_plan_count(const korch_model *model) { return model->plan_count; }

int korch_plan_position(const korch_model *model, int k) { return model->plans[k].position; }

int korch_input_count(const korch_model *model) { return (int)model->input_count; }

int korch_output_count(const korch_model *model) { return (int)model->output_count; }

const korch_tensor_info *korch_input(const korch_model *model, int k, int index) {
  return &model->plans[k].tensors[index];
}

const korch_tensor_info *korch_output(const korch_model *model, int k, int index) {
  return &model->plans[k].tensors[model->input_count + (uint64_t)index];
}

/* Running */

korch_context *korch_context_new(const korch_model *model, int k, int threads, char *text, size_t size) {
  error_line error = {text, size};
  if (k < 0 || k >= model->plan_count) return fail(error, "%s has no plan number %d", model->path, k);
  const plan *p = &model->plans[k];
  if (threads < 1) {
    threads = korch_default_threads();
    if (p->threads && (uint64_t)threads > p->threads) threads = (int)p->threads;
  }
  if (threads > KORCH_MAX_THREADS) threads = KORCH_MAX_THREADS;
  uint64_t io = model->input_count + model->output_count;
  korch_context *context = calloc(1, sizeof *context + io * sizeof *context->io);
  if (!context) return fail(error, "no memory for a context of %s", model->path);
  uint64_t stride = (p->scratch_bytes + 127) / 128 * 128; /* workers share no line */
  uint64_t scratch = stride * (uint64_t)threads, arena = (p->arena_bytes + 127) / 128 * 128;
  context->memory_size = scratch + arena + 128;
  void *memory = mmap(NULL, context->memory_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    size_t wanted = context->memory_size;
    free(context);
    return fail(error, "no memory for a context of %s: it needs %zu bytes", model->path, wanted);
  }
  madvise(memory, context->memory_size, MADV_HUGEPAGE); /* fewer address translations; a wish, so not checked */
  context->of = p;
  context->memory = memory;
  context->arena = context->memory + scratch;
  context->input_count = model->input_count;
  context->output_count = model->output_count;
  context->table = (korch_runtime){1, (uint32_t)threads, context->memory, (int64_t)stride, NULL, NULL};
  return context;
}

void korch_context_free(korch_context *context) {
  if (context) munmap(context->memory, context->memory_size);
  free(context);
}

int korch_run(korch_context *context, const void *const *inputs, void *const *outputs) {
  if (atomic_exchange(&context->running, 1)) return 1;
  korch_session session;
  uint64_t inputs_end = context->input_count;
  for (uint64_t k = 0; k < inputs_end; k++) context->io[k] = (char *)inputs[k];
  for (uint64_t k = 0; k < context->output_count; k++) context->io[inputs_end + k] = outputs[k];
  korch_begin(&session, &context->table);
  context->of->entry(&session.table, context->io, context->arena, (const char *)context->of->weights.at);
  korch_end(&session);
  atomic_store(&context->running, 0);
  return 0;
}
