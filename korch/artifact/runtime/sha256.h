/* SHA-256 (FIPS 180-4). */
#ifndef KORCH_SHA256_H
#define KORCH_SHA256_H

#include <stddef.h>

typedef struct korch_bytes {
  const void *at;
  size_t size;
} korch_bytes;

/* The hash of `count` pieces one after another. */
void korch_sha256(const korch_bytes *pieces, int count, unsigned char hash[32]);

#endif
