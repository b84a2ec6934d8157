/* Runs a .korch file: ./main MODEL.korch [INPUT.bin...]
 *
 *   cc main.c -o main -L. -lkorch -Wl,-rpath,'$ORIGIN' -ldl -lpthread
 *
 * Each INPUT.bin holds the bytes of one input, row-major; an input without a file is all zeros. */
#include "korch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *zeros_or_file(const korch_tensor_info *info, const char *path) {
  void *data = calloc(1, info->bytes + 1);
  FILE *file = path ? fopen(path, "rb") : NULL;
  if (path && (!file || fread(data, 1, info->bytes, file) != info->bytes)) {
    fprintf(stderr, "%s does not hold the %zu bytes of %s\n", path, info->bytes, info->name);
    exit(1);
  }
  if (file) fclose(file);
  return data;
}

int main(int argc, char **argv) {
  char error[256];
  korch_model *model = korch_load(argc > 1 ? argv[1] : "model.korch", error, sizeof error);
  korch_context *context = model ? korch_context_new(model, 0, 0, error, sizeof error) : NULL;
  if (!context) return fprintf(stderr, "%s\n", error), 1;

  int input_count = korch_input_count(model), output_count = korch_output_count(model);
  const void **inputs = calloc(input_count + 1, sizeof *inputs);
  void **outputs = calloc(output_count + 1, sizeof *outputs);
  for (int k = 0; k < input_count; k++)
    inputs[k] = zeros_or_file(korch_input(model, 0, k), k + 2 < argc ? argv[k + 2] : NULL);
  for (int k = 0; k < output_count; k++) outputs[k] = malloc(korch_output(model, 0, k)->bytes + 1);

  korch_run(context, inputs, outputs);

  for (int k = 0; k < output_count; k++) {
    const korch_tensor_info *info = korch_output(model, 0, k);
    size_t count = strcmp(info->dtype, "float32") ? 0 : info->bytes / sizeof(float);
    printf("%s %s, %zu bytes:", info->name, info->dtype, info->bytes);
    for (size_t i = 0; i < count && i < 8; i++) printf(" %g", ((float *)outputs[k])[i]);
    printf("\n");
  }
  korch_context_free(context);
  korch_free(model);
  return 0;
}
