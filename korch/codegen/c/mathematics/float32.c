// Vector mathematics in float32. Polynomials are minimax fits of this project's own; the largest errors in units
// in the last place (ulp) are measured over all float32 inputs by benchmarks/vector_math.py.

/* x - n ln 2 for n = round(x / ln 2), |n| < 2^9: the first part of ln 2 has few bits, so its product is exact. */
FN vf32 korch_reduce_f32(vf32 x, vf32 n) {
  vf32 r = korch_fma_f32(n, (vf32)-0x1.62e4p-1f, x);
  return korch_fma_f32(n, (vf32)-0x1.7f7d1cp-20f, r);
}

/* (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2; relative to e^r to 2^-28. */
FN vf32 korch_exp_tail_f32(vf32 r) {
  vf32 p = korch_fma_f32((vf32)0x1.6a4d6p-10f, r, (vf32)0x1.12398ep-7f);
  p = korch_fma_f32(p, r, (vf32)0x1.5558bp-5f);
  p = korch_fma_f32(p, r, (vf32)0x1.555492p-3f);
  return korch_fma_f32(p, r, (vf32)0x1.fffffcp-2f);
}

/* e^x = 2^n e^r. 2^n is two factors, so that results below 2^-126 are rounded once, to denormals. */
FN vf32 korch_exp_f32(vf32 x) {
  x = korch_clamp_f32(x, -104.0f, 89.0f);
  const f32 shift = 0x1.8p23f + 254;   /* adding it rounds to an integer and leaves n + 254 in the low bits */
  vf32 t = korch_fma_f32(x, (vf32)0x1.715476p+0f, (vf32)shift), n = t - shift;
  vf32 r = korch_reduce_f32(x, n);
  vf32 p = korch_fma_f32(korch_exp_tail_f32(r), r, (vf32)1.0f);
  p = korch_fma_f32(p, r, (vf32)1.0f);
#if __AVX512F__ && W == 16
  return __builtin_ia32_scalefps512_mask(p, n, p, -1, 4);
#else
  vf32 h = korch_fma_f32(x, (vf32)0x1.715476p-1f, (vf32)(0x1.8p23f + 127)); /* half of n */
  return p * (vf32)((vi32)h << 23) * (vf32)(((vi32)t - (vi32)h) << 23);
#endif
}

/* a / (1 + e^-x): sigmoid with a = 1, silu with a = x. Computed as (a / 2) / (1/2 + e^-x / 2), so that one factor
   2^(n-1) is finite as far as e^-x is; beyond, it is infinite. */
FN vf32 korch_gate_f32(vf32 a, vf32 x) {
  x = korch_clamp_f32(x, -89.5f, 87.0f);
  const f32 shift = 0x1.8p23f + 126;   /* leaves n + 126, the exponent field of 2^(n-1), in the low bits */
  vf32 t = korch_fma_f32(x, (vf32)-0x1.715476p+0f, (vf32)shift), n = t - shift;
  vf32 r = korch_reduce_f32(-x, n);
  vf32 p = korch_fma_f32(korch_exp_tail_f32(r), r, (vf32)1.0f);
  p = korch_fma_f32(p, r, (vf32)1.0f);
  return a * 0.5f / korch_fma_f32(p, (vf32)((vi32)t << 23), (vf32)0.5f);
}

/* e^x - 1 for -20 <= x <= 89, and NaN. */
FN vf32 korch_expm1_core_f32(vf32 x) {
  vf32 n = korch_fma_f32(x, (vf32)0x1.715476p+0f, (vf32)0x1.8p23f) - 0x1.8p23f;
  vf32 r = korch_reduce_f32(x, n);
  vf32 q = korch_fma_f32(r * r, korch_exp_tail_f32(r), r);
  vf32 s = (vf32)((__builtin_convertvector(n, vi32) + 126) << 23); /* 2^(n-1), finite up to n = 128 */
  return korch_fma_f32(q, s, s - 0.5f) * 2.0f;
}

/* e^x - 1. */
FN vf32 korch_expm1_f32(vf32 x) {
  return korch_copysign_f32(korch_expm1_core_f32(korch_clamp_f32(x, -18.0f, 89.0f)), x);
}

/* tanh x: an odd polynomial below 0.625, above it 1 - 2 / (e^(2|x|) + 1). */
FN vf32 korch_tanh_f32(vf32 x) {
  vf32 a = __builtin_elementwise_abs(x), z = x * x;
  vf32 p = korch_fma_f32((vf32)-0x1.750ce4p-8f, z, (vf32)0x1.51f8cep-6f);
  p = korch_fma_f32(p, z, (vf32)-0x1.b83564p-5f);
  p = korch_fma_f32(p, z, (vf32)0x1.1106f6p-3f);
  p = korch_fma_f32(p, z, (vf32)-0x1.555532p-2f);
  vf32 y = a > 9.5f ? (vf32)19.0f : a + a;
  vf32 n = korch_fma_f32(y, (vf32)0x1.715476p+0f, (vf32)0x1.8p23f) - 0x1.8p23f;
  vf32 r = korch_reduce_f32(y, n);
  vf32 e = korch_fma_f32(korch_fma_f32(korch_exp_tail_f32(r), r, (vf32)1.0f), r, (vf32)1.0f);
  e *= (vf32)((__builtin_convertvector(n, vi32) + 127) << 23);
  vf32 large = korch_copysign_f32(1.0f - 2.0f / (e + 1.0f), x);
  return a < 0.625f ? korch_fma_f32(x * z, p, x) : large;
}

/* log(1 + f) + e ln 2 for |f| <= 1/3 and e = 0 or |result| >= 0.28. */
FN vf32 korch_log_core_f32(vf32 f, vf32 e) {
  vf32 p = korch_fma_f32((vf32)-0x1.07c494p-3f, f, (vf32)0x1.1e6ccap-3f);
  p = korch_fma_f32(p, f, (vf32)-0x1.f332b6p-4f);
  p = korch_fma_f32(p, f, (vf32)0x1.1ed562p-3f);
  p = korch_fma_f32(p, f, (vf32)-0x1.559c66p-3f);
  p = korch_fma_f32(p, f, (vf32)0x1.99d05p-3f);
  p = korch_fma_f32(p, f, (vf32)-0x1.fffefap-3f);
  p = korch_fma_f32(p, f, (vf32)0x1.555506p-2f);
  p = korch_fma_f32(p, f, (vf32)-0.5f);
  vf32 t = korch_fma_f32(e, (vf32)0x1.7f7d1cp-20f, f * f * p);
  return korch_fma_f32(e, (vf32)0x1.62e4p-1f, f + t);
}

/* log x: x = (1 + f) 2^e with 1 + f in [2/3, 4/3). */
FN vf32 korch_log_f32(vf32 x) {
  vi32 tiny = x < 0x1p-126f;
  vf32 y = tiny ? x * 0x1p23f : x;
  vi32 e = ((vi32)y - 0x3f2aaaab) >> 23;
  vf32 f = (vf32)((vi32)y - (e << 23)) - 1.0f;
  vf32 r = korch_log_core_f32(f, __builtin_convertvector(tiny ? e - 23 : e, vf32));
  r = x < __builtin_inff() ? r : x;              /* infinity and NaN */
  r = x > 0.0f | x != x ? r : (vf32)__builtin_nanf("");
  return x == 0.0f ? (vf32)-__builtin_inff() : r;
}

/* log(1 + x): what rounding 1 + x loses is added to f. */
FN vf32 korch_log1p_f32(vf32 x) {
  vf32 u = 1.0f + x;
  vf32 lost = x < 1.0f ? x - (u - 1.0f) : 1.0f - (u - x);
  vi32 e = ((vi32)u - 0x3f2aaaab) >> 23;
  vf32 f = (vf32)((vi32)u - (e << 23)) - 1.0f;
  vi32 s = (127 - e) << 23; /* 2^-e, which is normal unless nothing is lost */
  f = e < 64 ? korch_fma_f32(lost, (vf32)s, f) : f;
  vf32 r = korch_log_core_f32(f, __builtin_convertvector(e, vf32));
  r = x < __builtin_inff() ? r : x;
  r = x >= -1.0f | x != x ? r : (vf32)__builtin_nanf("");
  r = x == -1.0f ? (vf32)-__builtin_inff() : r;
  return x == 0.0f ? x : r;
}

/* erf x: a polynomial in x^2 below 1.1, above it 1 - g(|x|)^4 with a polynomial g for erfc(x)^(1/4). */
FN vf32 korch_erf_f32(vf32 x) {
  vf32 a = __builtin_elementwise_abs(x);
  a = a > 3.95f ? (vf32)3.95f : a;
  vf32 z = x * x;
  vf32 p = korch_fma_f32((vf32)0x1.2f80b2p-14f, z, (vf32)-0x1.9a3de0p-11f);
  p = korch_fma_f32(p, z, (vf32)0x1.52ac24p-8f);
  p = korch_fma_f32(p, z, (vf32)-0x1.b7cdep-6f);
  p = korch_fma_f32(p, z, (vf32)0x1.ce2aa6p-4f);
  p = korch_fma_f32(p, z, (vf32)-0x1.812734p-2f);
  p = korch_fma_f32(p, z, (vf32)0x1.06eba8p-3f);
  vf32 g = korch_fma_f32((vf32)-0x1.e9bedcp-17f, a, (vf32)0x1.b82434p-15f);
  g = korch_fma_f32(g, a, (vf32)0x1.b1763ep-10f);
  g = korch_fma_f32(g, a, (vf32)-0x1.09155ep-6f);
  g = korch_fma_f32(g, a, (vf32)0x1.aa018ep-5f);
  g = korch_fma_f32(g, a, (vf32)-0x1.e7207cp-6f);
  g = korch_fma_f32(g, a, (vf32)-0x1.506b1ap-4f);
  g = korch_fma_f32(g, a, (vf32)-0x1.32801cp-2f);
  g = korch_fma_f32(g, a, (vf32)0x1.00e144p+0f);
  g *= g;
  vf32 large = korch_copysign_f32(korch_fma_f32(-g, g, (vf32)1.0f), x);
  return a < 1.1f ? korch_fma_f32(x, p, x) : large;
}
