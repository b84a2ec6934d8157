/* Runs a .korch file: ./main MODEL.korch [INPUT.bin...], where each INPUT.bin holds one input's bytes, row-major.
 * An input without a file is all zeros. Build: cc main.c -o main -L. -lkorch -Wl,-rpath,'$ORIGIN' -ldl -lpthread */
#include "korch.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  char error[256];
  korch_model *model = korch_load(argc > 1 ? argv[1] : "model.korch", error, sizeof error);
  korch_context *context = model ? korch_context_new(model, 0, 0, error, sizeof error) : NULL;
  if (!context) return fprintf(stderr, "%s\n", error), 1;
  void **inputs = calloc(korch_input_count(model) + 1, sizeof *inputs);
  void **outputs = calloc(korch_output_count(model) + 1, sizeof *outputs);
  for (int k = 0; k < korch_input_count(model); k++) {
    const korch_tensor_info *info = korch_input(model, 0, k);
    inputs[k] = calloc(1, info->bytes + 1);
    FILE *file = k + 2 < argc ? fopen(argv[k + 2], "rb") : NULL;
    if (k + 2 < argc && (!file || fread(inputs[k], 1, info->bytes, file) != info->bytes))
      return fprintf(stderr, "%s does not hold the %zu bytes of %s\n", argv[k + 2], info->bytes, info->name), 1;
  }
  for (int k = 0; k < korch_output_count(model); k++) outputs[k] = malloc(korch_output(model, 0, k)->bytes + 1);
  korch_run(context, (const void *const *)inputs, outputs);
  for (int k = 0; k < korch_output_count(model); k++) {
    const korch_tensor_info *info = korch_output(model, 0, k);
    size_t floats = strcmp(info->dtype, "float32") ? 0 : info->bytes / sizeof(float);
    printf("%s %s, %zu bytes:", info->name, info->dtype, info->bytes);
    for (size_t i = 0; i < floats && i < 8; i++) printf(" %g", ((float *)outputs[k])[i]);
    printf("\n");
  }
}
