// Loads and stores of W lanes. `_n_` forms touch the first n lanes only (0 <= n <= W), the other lanes are 0;
// gather and scatter step through memory by a stride counted in elements. float16, bfloat16 and bool convert.

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN v$T korch_splat_$T($T x) { return (v$T)x; }

FN vb8 korch_splat_b8(int x) { return (vi32)(x ? -1 : 0); }

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
/* 0, 1, ... W - 1 */
FN v$T korch_iota_$T(void) { return (v$T){$LANES}; }

/* The lanes below n. */
FN vb8 korch_first(int64_t n) { return korch_iota_i32() < (vi32)(int32_t)n; }

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN v$T korch_load_$T(const $T *p) { return *(const korch_any_$T *)p; }

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN void korch_store_$T($T *p, v$T v) { *(korch_any_$T *)p = v; }

/* Masked loads and stores: AVX2 has them for 4 and 8 bytes, AVX-512 for all; branches elsewhere. */
FN korch_bits korch_mask(int64_t n) { return __builtin_convertvector(korch_first(n), korch_bits); }

//@ T = f32:__AVX2__ f64:__AVX2__ i64:__AVX2__ i32:__AVX2__ u64:__AVX2__ u32:__AVX2__ i16:__AVX512BW__ i8:__AVX512BW__ u16:__AVX512BW__ u8:__AVX512BW__
FN v$T.0 korch_load_n_$T.0(const $T.0 *p, int64_t n) {
#if $T.1
  return __builtin_masked_load(korch_mask(n), p, (v$T.0)0);
#else
  v$T.0 v = (v$T.0)0;
  _Pragma("clang loop unroll(full)") for (int i = 0; i < W; i++) if (i < n) v[i] = p[i];
  return v;
#endif
}

//@ T = f32:__AVX2__ f64:__AVX2__ i64:__AVX2__ i32:__AVX2__ u64:__AVX2__ u32:__AVX2__ i16:__AVX512BW__ i8:__AVX512BW__ u16:__AVX512BW__ u8:__AVX512BW__
FN void korch_store_n_$T.0($T.0 *p, v$T.0 v, int64_t n) {
#if $T.1
  /* Where clang 22 sees that n is 1, it stores the four bytes of the lane that narrows to these one or two. */
  if (sizeof($T.0) < 4) __asm__("" : "+r"(n));
  __builtin_masked_store(korch_mask(n), v, p);
#else
  _Pragma("clang loop unroll(full)") for (int i = 0; i < W; i++) if (i < n) p[i] = v[i];
#endif
}

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN v$T korch_gather_$T(const $T *p, int64_t stride) {
  v$T v;
  _Pragma("clang loop unroll(full)") for (int i = 0; i < W; i++) v[i] = p[i * stride];
  return v;
}

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN v$T korch_gather_n_$T(const $T *p, int64_t stride, int64_t n) {
  v$T v = (v$T)0;
  _Pragma("clang loop unroll(full)") for (int i = 0; i < W; i++) if (i < n) v[i] = p[i * stride];
  return v;
}

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN void korch_scatter_$T($T *p, int64_t stride, v$T v) {
  _Pragma("clang loop unroll(full)") for (int i = 0; i < W; i++) p[i * stride] = v[i];
}

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN void korch_scatter_n_$T($T *p, int64_t stride, v$T v, int64_t n) {
  _Pragma("clang loop unroll(full)") for (int i = 0; i < W; i++) if (i < n) p[i * stride] = v[i];
}

/* Hardware converts float16 with F16C, AVX-512 and NEON. */
#define KORCH_HALF (__F16C__ || __AVX512F__ || __aarch64__)
typedef _Float16 korch_half __attribute__((ext_vector_type(W)));

/* The float32 values of float16 bits. */
FN vf32 korch_widen_f16(vu16 bits) {
#if KORCH_HALF
  return __builtin_convertvector((korch_half)bits, vf32);
#else
  vu32 h = __builtin_convertvector(bits, vu32), a = h & 0x7fff;
  /* The exponent's bias differs by 112; multiplying settles float16's denormals too. */
  vu32 v = (vu32)((vf32)(a << 13) * 0x1p112f);
  v = a >= 0x7c00 ? (a << 13 | 0x7f800000) : v;
  return (vf32)(v | (h & 0x8000) << 16);
#endif
}

/* float16 bits, rounded to nearest even. */
FN vu16 korch_narrow_f16(vf32 x) {
#if KORCH_HALF
  return (vu16)__builtin_convertvector(x, korch_half);
#else
  vu32 b = (vu32)x, a = b & 0x7fffffff;
  vu32 normal = (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
  vu32 tiny = (vu32)((vf32)a + 0.5f) - 0x3f000000; /* 0.5's last place is float16's least denormal */
  vu32 r = a < 0x38800000 ? tiny : normal;
  r = a >= 0x477ff000 ? (vu32)0x7c00 : r;
  r = a > 0x7f800000 ? 0x7e00 | (a >> 13 & 0x3ff) : r;
  return __builtin_convertvector(r | (b >> 16 & 0x8000), vu16);
#endif
}

FN vf32 korch_widen_bf16(vu16 bits) { return (vf32)(__builtin_convertvector(bits, vu32) << 16); }

/* bfloat16 bits, rounded to nearest even. */
FN vu16 korch_narrow_bf16(vf32 x) {
  vu32 b = (vu32)x;
  vu32 r = (b + 0x7fff + (b >> 16 & 1)) >> 16;
  r = (b & 0x7fffffff) > 0x7f800000 ? (b >> 16 | 0x40) : r;
  return __builtin_convertvector(r, vu16);
}

/* Bytes 0 and 1 to a mask and back. */
FN vb8 korch_widen_b8(vu8 bytes) { return __builtin_convertvector((vi8)(bytes != 0), vi32); }

FN vu8 korch_narrow_b8(vb8 mask) { return __builtin_convertvector(mask, vu8) & 1; }

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
/* One element in all lanes. */
FN v$T korch_broadcast_$T(const $T *p) { return (v$T)*p; }

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN $T.1 korch_broadcast_$T.0(const $T.0 *p) { return korch_widen_$T.0((v$T.2)*p); }

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN $T.1 korch_load_$T.0(const $T.0 *p) { return korch_widen_$T.0(korch_load_$T.2(p)); }

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN $T.1 korch_load_n_$T.0(const $T.0 *p, int64_t n) { return korch_widen_$T.0(korch_load_n_$T.2(p, n)); }

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN $T.1 korch_gather_$T.0(const $T.0 *p, int64_t stride) { return korch_widen_$T.0(korch_gather_$T.2(p, stride)); }

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN $T.1 korch_gather_n_$T.0(const $T.0 *p, int64_t stride, int64_t n) {
  return korch_widen_$T.0(korch_gather_n_$T.2(p, stride, n));
}

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN void korch_store_$T.0($T.0 *p, $T.1 v) { korch_store_$T.2(p, korch_narrow_$T.0(v)); }

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN void korch_store_n_$T.0($T.0 *p, $T.1 v, int64_t n) { korch_store_n_$T.2(p, korch_narrow_$T.0(v), n); }

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN void korch_scatter_$T.0($T.0 *p, int64_t stride, $T.1 v) {
  korch_scatter_$T.2(p, stride, korch_narrow_$T.0(v));
}

//@ T = f16:vf32:u16 bf16:vf32:u16 b8:vb8:u8
FN void korch_scatter_n_$T.0($T.0 *p, int64_t stride, $T.1 v, int64_t n) {
  korch_scatter_n_$T.2(p, stride, korch_narrow_$T.0(v), n);
}
