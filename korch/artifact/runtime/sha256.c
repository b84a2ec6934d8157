#include "sha256.h"

#include <stdint.h>
#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t big_endian(const unsigned char *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* One round. The eight variables take each other's places instead of being moved: h becomes the new a. */
#define ROUND(a, b, c, d, e, f, g, h, t)                                                                  \
  do {                                                                                                    \
    uint32_t sum1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25), choose = (e & f) ^ (~e & g);            \
    uint32_t sum0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22), majority = (a & b) ^ (a & c) ^ (b & c); \
    uint32_t first = h + sum1 + choose + K[t] + w[t];                                                     \
    d += first;                                                                                           \
    h = first + sum0 + majority;                                                                          \
  } while (0)

static void block(uint32_t state[8], const unsigned char *data) {
  uint32_t w[64];
  for (int t = 0; t < 16; t++) w[t] = big_endian(data + 4 * t);
  for (int t = 16; t < 64; t++) {
    uint32_t low = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
    uint32_t high = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + low + w[t - 7] + high;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
  uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
  for (int t = 0; t < 64; t += 8) {
    ROUND(a, b, c, d, e, f, g, h, t);
    ROUND(h, a, b, c, d, e, f, g, t + 1);
    ROUND(g, h, a, b, c, d, e, f, t + 2);
    ROUND(f, g, h, a, b, c, d, e, t + 3);
    ROUND(e, f, g, h, a, b, c, d, t + 4);
    ROUND(d, e, f, g, h, a, b, c, t + 5);
    ROUND(c, d, e, f, g, h, a, b, t + 6);
    ROUND(b, c, d, e, f, g, h, a, t + 7);
  }
  state[0] += a, state[1] += b, state[2] += c, state[3] += d;
  state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

void korch_sha256(const korch_bytes *pieces, int count, unsigned char hash[32]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char pending[64];
  size_t filled = 0;
  uint64_t total = 0;
  for (int k = 0; k < count; k++) {
    const unsigned char *at = pieces[k].at;
    size_t left = pieces[k].size;
    total += left;
    while (left) {
      if (!filled && left >= 64) {
        block(state, at);
        at += 64;
        left -= 64;
        continue;
      }
      size_t n = 64 - filled < left ? 64 - filled : left;
      memcpy(pending + filled, at, n);
      filled = (filled + n) % 64;
      if (!filled) block(state, pending);
      at += n;
      left -= n;
    }
  }
  pending[filled++] = 0x80;
  if (filled > 56) {
    memset(pending + filled, 0, 64 - filled);
    block(state, pending);
    filled = 0;
  }
  memset(pending + filled, 0, 56 - filled);
  for (int k = 0; k < 8; k++) pending[56 + k] = (unsigned char)(total * 8 >> (56 - 8 * k));
  block(state, pending);
  for (int k = 0; k < 32; k++) hash[k] = (unsigned char)(state[k / 4] >> (24 - 8 * (k % 4)));
}
