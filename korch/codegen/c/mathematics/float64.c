// Vector mathematics in float64, within 1e-15 of the exact value. Functions that models use rarely are computed
// here for float32 too. Polynomials are minimax fits of this project's own.

/* The polynomial c[0] + c[1] z + ... + c[n - 1] z^(n - 1). */
FN vf64 korch_horner_f64(vf64 z, const f64 *c, int n) {
  vf64 p = (vf64)c[n - 1];
  _Pragma("clang loop unroll(full)") for (int i = n - 2; i >= 0; i--) p = korch_fma_f64(p, z, (vf64)c[i]);
  return p;
}

FN int korch_some_i64(vi64 mask) { return __builtin_reduce_or(mask) != 0; }

/* x - n ln 2, |n| < 2^11: the first part of ln 2 has few bits, so its product is exact. */
FN vf64 korch_reduce_f64(vf64 x, vf64 n) {
  return korch_fma_f64(n, (vf64)-0x1.a39ef35793c76p-33, korch_fma_f64(n, (vf64)-0x1.62e42fee00000p-1, x));
}

/* e^r - 1 for |r| <= ln(2) / 2. */
FN vf64 korch_expm1_near_f64(vf64 r) {
  static const f64 c[] = {0x1.0000000000000p-1, 0x1.5555555555557p-3, 0x1.555555555553cp-5, 0x1.1111111110147p-7,
    0x1.6c16c16c23c97p-10, 0x1.a01a01abb7197p-13, 0x1.a01a01576041bp-16, 0x1.71de02b5526adp-19,
    0x1.27e598a1e46c3p-22, 0x1.af4cfd297b443p-26, 0x1.1e37be4eba6c6p-29};
  return korch_fma_f64(r * r, korch_horner_f64(r, c, 11), r);
}

/* e^(x + low) for |low| <= 2^-30; 2^n is two factors, so that results below 2^-1022 are rounded once. */
FN vf64 korch_exp_sum_f64(vf64 x, vf64 low) {
  x = korch_clamp_f64(x, -746.0, 710.0);
  const f64 shift = 0x1.8p52 + 2046; /* adding it rounds to an integer and leaves n + 2046 in the low bits */
  vf64 t = korch_fma_f64(x, (vf64)0x1.71547652b82fep+0, (vf64)shift);
  vf64 h = korch_fma_f64(x, (vf64)0x1.71547652b82fep-1, (vf64)(0x1.8p52 + 1023)); /* half of n */
  vf64 p = korch_expm1_near_f64(korch_reduce_f64(x, t - shift) + low) + 1.0;
  return p * (vf64)((vi64)h << 52) * (vf64)(((vi64)t - (vi64)h) << 52);
}

/* e^x. */
FN vf64 korch_exp_f64(vf64 x) { return korch_exp_sum_f64(x, (vf64)0.0); }

/* e^x - 1. */
FN vf64 korch_expm1_f64(vf64 x) {
  vf64 y = korch_clamp_f64(x, -40.0, 710.0);
  const f64 shift = 0x1.8p52 + 1022;
  vf64 t = korch_fma_f64(y, (vf64)0x1.71547652b82fep+0, (vf64)shift);
  vf64 q = korch_expm1_near_f64(korch_reduce_f64(y, t - shift));
  vf64 s = (vf64)((vi64)t << 52); /* 2^(n-1), finite up to n = 1024 */
  return korch_copysign_f64(korch_fma_f64(q, s, s - 0.5) * 2.0, x);
}

/* tanh |x| = 1 - 2 / (e^(2|x|) + 1), and from e^(-2|x|) - 1 where that would cancel. */
FN vf64 korch_tanh_f64(vf64 x) {
  vf64 a = __builtin_elementwise_abs(x);
  vf64 t = korch_expm1_f64(a < 0.25 ? -2.0 * a : 2.0 * a);
  return korch_copysign_f64(a < 0.25 ? t / (t + 2.0) : 1.0 - 2.0 / (t + 2.0), x);
}

/* log(1 + f) + e ln 2 for 1 + f in [sqrt(1/2), sqrt(2)): with s = f / (2 + f), log(1 + f) = 2 s + s z R(z), z = s^2,
   and 2 s = f - f^2/2 + s f^2/2 keeps f exact. */
FN vf64 korch_log_core_f64(vf64 f, vf64 e) {
  static const f64 c[] = {0x1.5555555555558p-1, 0x1.99999999951fep-2, 0x1.2492492e08086p-2, 0x1.c71c62cafb9b8p-3,
    0x1.7462bba5f073fp-3, 0x1.39fd87d2171afp-3, 0x1.2b6220d99381fp-3};
  vf64 s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  vf64 r = korch_fma_f64(s, half + z * korch_horner_f64(z, c, 7), e * 0x1.a39ef35793c76p-33);
  return korch_fma_f64(e, (vf64)0x1.62e42fee00000p-1, f - (half - r));
}

/* The exponent k such that x 2^-k lies in [sqrt(1/2), sqrt(2)), for positive normal x. */
FN vi64 korch_exponent_f64(vf64 x) { return ((vi64)x - 0x3fe6a09e667f3bcd) >> 52; }

FN vf64 korch_small_to_f64(vi64 k) { return __builtin_convertvector(__builtin_convertvector(k, vi32), vf64); }

/* log x. */
FN vf64 korch_log_f64(vf64 x) {
  vi64 tiny = x < 0x1p-1022;
  vf64 y = tiny ? x * 0x1p54 : x;
  vi64 k = korch_exponent_f64(y);
  vf64 f = (vf64)((vi64)y - (k << 52)) - 1.0;
  vf64 r = korch_log_core_f64(f, korch_small_to_f64(tiny ? k - 54 : k));
  r = x < __builtin_inf() ? r : x; /* infinity and NaN */
  r = x > 0.0 | x != x ? r : (vf64)__builtin_nan("");
  return x == 0.0 ? (vf64)-__builtin_inf() : r;
}

/* log(1 + x): what rounding 1 + x loses is added to f. */
FN vf64 korch_log1p_f64(vf64 x) {
  vf64 u = 1.0 + x;
  vf64 lost = x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x);
  vi64 k = korch_exponent_f64(u);
  vf64 f = (vf64)((vi64)u - (k << 52)) - 1.0;
  f = k < 64 ? korch_fma_f64(lost, (vf64)((1023 - k) << 52), f) : f;
  vf64 r = korch_log_core_f64(f, korch_small_to_f64(k));
  r = x < __builtin_inf() ? r : x;
  r = x >= -1.0 | x != x ? r : (vf64)__builtin_nan("");
  r = x == -1.0 ? (vf64)-__builtin_inf() : r;
  return x == 0.0 ? x : r;
}

/* erf x: a polynomial in x^2 below 1.1, above it 1 - g(|x|)^8 with a polynomial g for erfc(x)^(1/8). */
FN vf64 korch_erf_f64(vf64 x) {
  static const f64 small[] = {0x1.06eba8214db68p-3, -0x1.812746b0379dfp-2, 0x1.ce2f21a04262dp-4,
    -0x1.b82ce3126f1dep-6, 0x1.565bcd0aacfdcp-8, -0x1.c02db3593efe6p-11, 0x1.f9a31437d10dcp-14,
    -0x1.f4d0f1990933ep-17, 0x1.b9d3f5b283ef8p-20, -0x1.5ec73fbbc7ce9p-23, 0x1.f44d7e36ea122p-27,
    -0x1.2edeb07fd6c16p-30, 0x1.db15ba159e3f5p-35};
  static const f64 large[] = {0x1.fffffdf1a5dd6p-1, -0x1.20dd2737d5d77p-3, -0x1.1d375188ced4fp-4,
    -0x1.110be4829769ap-9, 0x1.af53c39e347e1p-8, 0x1.8f5df038bf7c9p-13, -0x1.0a50a18c384b7p-11,
    0x1.3e9e51bdb8bd3p-14, 0x1.4da743a42346cp-17, -0x1.631f6fb368206p-17, 0x1.5707d6848c1bfp-18,
    -0x1.cc19dae0425edp-20, 0x1.ba1649e4f5365p-22, -0x1.3a0c5f4bd7653p-24, 0x1.4f10f6410c0fbp-27,
    -0x1.08e639fd0b58dp-30, 0x1.26c8b4e1f7124p-34, -0x1.9c1d678eee2f2p-39, 0x1.0f83a4740af1bp-44};
  vf64 a = __builtin_elementwise_abs(x);
  a = a > 5.95 ? (vf64)5.95 : a;
  vf64 g = korch_horner_f64(a, large, 19);
  g *= g;
  g *= g;
  vf64 beyond = korch_copysign_f64(1.0 - g * g, x);
  return a < 1.1 ? korch_fma_f64(x, korch_horner_f64(x * x, small, 13), x) : beyond;
}

/* The bits of 2/pi after the point. */
static const uint64_t korch_two_over_pi[] = {0xa2f9836e4e441529u, 0xfc2757d1f534ddc0u, 0xdb6295993c439041u,
  0xfe5163abdebbc561u, 0xb7246e3a424dd2e0u, 0x06492eea09d1921cu, 0xfe1deb1cb129a73eu, 0xe88235f52ebb4484u,
  0xe99c7026b45f7e41u, 0x3991d639835339f4u, 0x9c845f8bbdf9283bu, 0x1ff897ffde05980fu, 0xef2f118b5a0a6d1fu,
  0x6d367ecf27cb09b7u, 0x4f463f669e5fea2du, 0x7527bac7ebe5f17bu, 0x3d0739f78a5292eau, 0x6bfb5fb11f8d5d08u,
  0x56033046fc7b6babu, 0xf0cfbc209af4361du};

/* x modulo pi/2 for a finite |x| >= 2^20, in [-pi/4, pi/4]; quadrant gets x's multiple modulo 4. The mantissa is
   multiplied by those 192 bits of 2/pi that neither vanish modulo 8 nor lie below what matters. */
KORCH_SCALAR f64 korch_angle_1(f64 x, int64_t *quadrant) {
  union { f64 f; uint64_t i; } bits = {x};
  int e = (int)(bits.i >> 52 & 0x7ff) - 1075; /* x = m 2^e */
  uint64_t m = (bits.i & 0xfffffffffffff) | 0x10000000000000;
  int skip = e > 3 ? e - 3 : 0, word = skip >> 6, shift = skip & 63;
  uint64_t w[3];
  for (int i = 0; i < 3; i++) {
    uint64_t high = korch_two_over_pi[word + i], low = korch_two_over_pi[word + i + 1];
    w[i] = shift ? high << shift | low >> (64 - shift) : high;
  }
  unsigned __int128 p2 = (unsigned __int128)m * w[2], p1 = (unsigned __int128)m * w[1] + (uint64_t)(p2 >> 64);
  unsigned __int128 p0 = (unsigned __int128)m * w[0] + (uint64_t)(p1 >> 64);
  uint64_t whole = (uint64_t)(p0 >> 64), high = (uint64_t)p0, low = (uint64_t)p1;
  if (e >= 3) { /* times 8 */
    whole = whole << 3 | high >> 61;
    high = high << 3 | low >> 61;
    low = low << 3 | (uint64_t)p2 >> 61;
  } else if (e > 0) {
    whole = whole << e | high >> (64 - e);
    high = high << e | low >> (64 - e);
    low = low << e | (uint64_t)p2 >> (64 - e);
  } else if (e < 0) {
    low = low >> -e | high << (64 + e);
    high = high >> -e | whole << (64 + e);
    whole >>= -e;
  }
  int up = high >> 63; /* the fraction is at least half: count from the next multiple */
  if (up) {
    high = ~high;
    low = -low;
    high += low == 0;
  }
  int zeros = high ? __builtin_clzll(high) : 64;
  if (zeros == 64) { high = low; low = 0; }
  else if (zeros) { high = high << zeros | low >> (64 - zeros); low <<= zeros; }
  int more = high ? __builtin_clzll(high) : 0;
  high <<= more;
  union { uint64_t i; f64 f; } scale = {(uint64_t)(1023 - 64 - zeros - more) << 52};
  f64 top = (f64)(high & ~0x7ffull), rest = (f64)(high & 0x7ff);
  f64 r = scale.f * (top * 0x1.921fb54442d18p+0 + (rest * 0x1.921fb54442d18p+0 + top * 0x1.1a62633145c07p-54));
  int negative = bits.i >> 63;
  int64_t q = (int64_t)(whole + up);
  *quadrant = negative ? -q : q;
  return negative != up ? -r : r;
}

/* x = q pi/2 + r with |r| <= pi/4; NaN for infinities. */
typedef struct { vf64 r; vi64 q; } korch_angle;
FN korch_angle korch_angle_f64(vf64 x) {
  vf64 t = korch_fma_f64(x, (vf64)0x1.45f306dc9c883p-1, (vf64)0x1.8p52), n = t - 0x1.8p52;
  vf64 first = korch_fma_f64(n, (vf64)-0x1.921fb54400000p+0, x);
  vf64 second = n * 0x1.0b4611a600000p-34, r = first - second; /* both products are exact: 33 bits by 21 */
  vf64 lost = (first - r) - second;
  korch_angle a = {r + (lost - n * 0x1.3198a2e037073p-69), (vi64)t};
  vi64 large = __builtin_elementwise_abs(x) >= 0x1p20;
  if (__builtin_expect(korch_some_i64(large), 0)) {
    f64 values[W], angles[W];
    int64_t quadrants[W];
    *(korch_any_f64 *)values = x;
    *(korch_any_f64 *)angles = a.r;
    *(korch_any_i64 *)quadrants = a.q;
    KORCH_PLAIN for (int i = 0; i < W; i++) {
      f64 v = values[i], size = v < 0 ? -v : v;
      if (size >= __builtin_inf()) angles[i] = v - v;
      else if (size >= 0x1p20) angles[i] = korch_angle_1(v, &quadrants[i]);
    }
    a.r = *(korch_any_f64 *)angles;
    a.q = *(korch_any_i64 *)quadrants;
  }
  return a;
}

/* sin r for |r| <= pi/4. */
FN vf64 korch_sin_near_f64(vf64 r) {
  static const f64 c[] = {-0x1.5555555555555p-3, 0x1.1111111111110p-7, -0x1.a01a01a019938p-13, 0x1.71de3a5460972p-19,
    -0x1.ae645412c3d91p-26, 0x1.61217f07a2905p-33, -0x1.ab17d07002321p-41};
  vf64 z = r * r;
  return korch_fma_f64(r * z, korch_horner_f64(z, c, 7), r);
}

/* cos r for |r| <= pi/4. */
FN vf64 korch_cos_near_f64(vf64 r) {
  static const f64 c[] = {0x1.5555555555555p-5, -0x1.6c16c16c16967p-10, 0x1.a01a019f4eb84p-16, -0x1.27e4fa17e0a58p-22,
    0x1.1eeb68ecd62b8p-29, -0x1.907da41c447b1p-37};
  vf64 z = r * r, half = 0.5 * z, w = 1.0 - half;
  return w + (((1.0 - w) - half) + z * z * korch_horner_f64(z, c, 6));
}

//@ F = sin:0 cos:1
FN vf64 korch_$F.0_f64(vf64 x) {
  korch_angle a = korch_angle_f64(x);
  vi64 q = a.q + $F.1;
  vf64 v = (q & 1) != 0 ? korch_cos_near_f64(a.r) : korch_sin_near_f64(a.r);
  v = (vf64)((vi64)v ^ (q & 2) << 62);
  return $F.1 ? v : (x == 0.0 ? x : v);
}

FN vf64 korch_tan_f64(vf64 x) {
  korch_angle a = korch_angle_f64(x);
  vf64 s = korch_sin_near_f64(a.r), c = korch_cos_near_f64(a.r);
  vi64 odd = (a.q & 1) != 0;
  vf64 v = (odd ? -c : s) / (odd ? s : c);
  return x == 0.0 ? x : v;
}

/* (asin x - x) / x for z = x^2 <= 1/4. */
FN vf64 korch_asin_tail_f64(vf64 z) {
  static const f64 c[] = {0x1.5555555555556p-3, 0x1.3333333332e3fp-4, 0x1.6db6db6e3ee98p-5, 0x1.f1c71c16189e5p-6,
    0x1.6e8bb2ede8f5bp-6, 0x1.1c4d1b9feaf17p-6, 0x1.c9d1fcb17bb3ap-7, 0x1.780a2bdd51013p-7, 0x1.52f4ab118b1abp-7,
    0x1.5fd0b4975fbbcp-8, 0x1.20fafd220c285p-6, -0x1.f285c3418ac40p-7, 0x1.db20417886846p-6};
  return z * korch_horner_f64(z, c, 13);
}

/* asin x; above 1/2 it is pi/2 - 2 asin sqrt((1 - |x|) / 2). */
FN vf64 korch_asin_f64(vf64 x) {
  vf64 a = __builtin_elementwise_abs(x), z = a > 0.5 ? 0.5 - 0.5 * a : a * a;
  vf64 s = a > 0.5 ? korch_sqrt_f64(z) : a;
  vf64 v = korch_fma_f64(s, korch_asin_tail_f64(z), s);
  v = a > 0.5 ? 0x1.921fb54442d18p+0 - (2.0 * v - 0x1.1a62633145c07p-54) : v;
  return korch_copysign_f64(v, x);
}

FN vf64 korch_acos_f64(vf64 x) {
  vf64 a = __builtin_elementwise_abs(x), z = a > 0.5 ? 0.5 - 0.5 * a : a * a;
  vf64 s = a > 0.5 ? korch_sqrt_f64(z) : x;
  vf64 v = korch_fma_f64(s, korch_asin_tail_f64(z), s);
  vf64 inner = 0x1.921fb54442d18p+0 - (v - 0x1.1a62633145c07p-54);
  vf64 outer = x < 0.0 ? 0x1.921fb54442d18p+1 - (2.0 * v - 0x1.1a62633145c07p-53) : 2.0 * v;
  return a > 0.5 ? outer : inner;
}

/* atan(y / x) for y, x >= 0, not both 0 or infinite: above tan(3 pi/8) it is pi/2 - atan(x / y), above tan(pi/8)
   pi/4 + atan((y - x) / (y + x)). */
FN vf64 korch_atan_ratio_f64(vf64 y, vf64 x) {
  static const f64 c[] = {-0x1.5555555555555p-2, 0x1.99999999993a7p-3, -0x1.249249243a6a6p-3, 0x1.c71c7187bba2dp-4,
    -0x1.745d0b86d5f9bp-4, 0x1.3b126b02afa1cp-4, -0x1.10fae13fc33e3p-4, 0x1.dfed08d2468d5p-5, -0x1.a0bafa6540e31p-5,
    0x1.41be1de8c630bp-5, -0x1.3b065ec77bff0p-6};
  vi64 steep = y > 2.414213562373095 * x, middle = y > 0.41421356237309503 * x;
  vf64 v = (steep ? -x : middle ? y - x : y) / (steep ? y : middle ? y + x : x), z = v * v;
  vf64 base = steep ? (vf64)0x1.921fb54442d18p+0 : middle ? (vf64)0x1.921fb54442d18p-1 : (vf64)0.0;
  vf64 low = steep ? (vf64)0x1.1a62633145c07p-54 : middle ? (vf64)0x1.1a62633145c07p-55 : (vf64)0.0;
  return base + (v + korch_fma_f64(v * z, korch_horner_f64(z, c, 11), low));
}

FN vf64 korch_atan_f64(vf64 x) {
  vf64 v = korch_atan_ratio_f64(__builtin_elementwise_abs(x), (vf64)1.0);
  v = __builtin_elementwise_abs(x) < 0x1p60 | x != x ? v : (vf64)0x1.921fb54442d18p+0;
  return korch_copysign_f64(v, x);
}

FN vf64 korch_atan2_f64(vf64 y, vf64 x) {
  vf64 a = __builtin_elementwise_abs(y), b = __builtin_elementwise_abs(x);
  vi64 infinite = a == __builtin_inf() | b == __builtin_inf();
  vi64 huge = a > 0x1p1000 | b > 0x1p1000;
  vf64 p = huge ? a * 0x1p-60 : a, q = huge ? b * 0x1p-60 : b;
  p = infinite ? (a == __builtin_inf() ? (vf64)1.0 : (vf64)0.0) : p;
  q = infinite ? (b == __builtin_inf() ? (vf64)1.0 : (vf64)0.0) : q;
  q = a == 0.0 & b == 0.0 ? (vf64)1.0 : q;
  vf64 v = korch_atan_ratio_f64(p, q);
  v = (vi64)x < 0 ? 0x1.921fb54442d18p+1 - (v - 0x1.1a62633145c07p-53) : v;
  v = x != x | y != y ? x + y : v;
  return korch_copysign_f64(v, y);
}

FN vf64 korch_sinh_f64(vf64 x) {
  vf64 a = __builtin_elementwise_abs(x), t = korch_expm1_f64(a > 22.0 ? (vf64)22.0 : a);
  vf64 w = korch_exp_f64(0.5 * a);
  return korch_copysign_f64(a > 22.0 ? 0.5 * w * w : 0.5 * (t + t / (t + 1.0)), x);
}

FN vf64 korch_cosh_f64(vf64 x) {
  vf64 a = __builtin_elementwise_abs(x), w = korch_exp_f64(a > 22.0 ? 0.5 * a : a);
  return a > 22.0 ? 0.5 * w * w : 0.5 * (w + 1.0 / w);
}

FN vf64 korch_asinh_f64(vf64 x) {
  vf64 a = __builtin_elementwise_abs(x), b = a > 0x1p28 ? (vf64)1.0 : a;
  vf64 near = korch_log1p_f64(b + b * b / (1.0 + korch_sqrt_f64(b * b + 1.0)));
  return korch_copysign_f64(a > 0x1p28 ? korch_log_f64(a) + 0x1.62e42fefa39efp-1 : a != a ? a : near, x);
}

FN vf64 korch_acosh_f64(vf64 x) {
  vf64 t = (x > 0x1p28 ? (vf64)1.0 : x) - 1.0;
  vf64 near = korch_log1p_f64(t + korch_sqrt_f64(t * (t + 2.0)));
  near = x < 1.0 ? (vf64)__builtin_nan("") : near;
  return x > 0x1p28 ? korch_log_f64(x) + 0x1.62e42fefa39efp-1 : near;
}

FN vf64 korch_atanh_f64(vf64 x) {
  vf64 a = __builtin_elementwise_abs(x);
  return korch_copysign_f64(0.5 * korch_log1p_f64(2.0 * a / (1.0 - a)), x);
}

/* What a * b loses by rounding. */
FN vf64 korch_product_error_f64(vf64 a, vf64 b, vf64 product) {
#if KORCH_FMA
  return korch_fma_f64(a, b, -product);
#else
  vf64 s = a * 0x1.0000002p27, t = b * 0x1.0000002p27; /* Veltkamp's splitting into halves */
  vf64 ah = s - (s - a), bh = t - (t - b), al = a - ah, bl = b - bh;
  return ((ah * bh - product) + ah * bl + al * bh) + al * bl;
#endif
}

/* log x as a sum of two, to 2^-64, for finite x > 0: as korch_log_core_f64, the first terms in twice the digits. */
typedef struct { vf64 high, low; } korch_pair;
FN korch_pair korch_log_pair_f64(vf64 x) {
  static const f64 c[] = {0x1.999999999999ap-2, 0x1.24924924924a4p-2, 0x1.c71c71c710036p-3, 0x1.745d1759874c6p-3,
    0x1.3b13a399eefeep-3, 0x1.1115db33fe5eep-3, 0x1.e01944657d457p-4, 0x1.d9cb84be80be1p-4};
  vi64 tiny = x < 0x1p-1022;
  vf64 y = tiny ? x * 0x1p54 : x;
  vi64 k = korch_exponent_f64(y);
  vf64 f = (vf64)((vi64)y - (k << 52)) - 1.0, e = korch_small_to_f64(tiny ? k - 54 : k);
  vf64 d = 2.0 + f, dl = f - (d - 2.0), s = f / d, p = s * d;
  vf64 sl = (((f - p) - korch_product_error_f64(s, d, p)) - s * dl) / d; /* f / (2 + f) = s + sl */
  vf64 z = s * s, zl = korch_product_error_f64(s, s, z) + 2.0 * s * sl;
  const f64 third = 0x1.5555555555555p-1, third_low = 0x1.5555555555555p-55; /* 2/3 */
  vf64 u = z * third, ul = korch_product_error_f64(z, (vf64)third, u) + (z * third_low + zl * third);
  ul += z * z * korch_horner_f64(z, c, 8);
  vf64 v = s * u, vl = korch_product_error_f64(s, u, v) + (s * ul + sl * u); /* log(1 + f) - 2 s */
  vf64 m = 2.0 * s + v, ml = ((2.0 * s - m) + v) + (2.0 * sl + vl);
  vf64 big = e * 0x1.62e42fee00000p-1, h = big + m;
  vf64 hl = (e != 0.0 ? (big - h) + m : (vf64)0.0) + (ml + e * 0x1.a39ef35793c76p-33);
  korch_pair r = {h + hl, 0};
  r.low = (h - r.high) + hl;
  return r;
}

/* x^y where |x|^y is known: signs, and the cases that C defines. */
FN vf64 korch_pow_finish_f64(vf64 x, vf64 y, vf64 size) {
  vf64 a = __builtin_elementwise_abs(x), half = 0.5 * y;
  vi64 whole = korch_round_f64(y) == y, odd = whole & (korch_round_f64(half) != half);
  vf64 r = odd ? korch_copysign_f64(size, x) : size;
  r = x < 0.0 & ~whole & a < __builtin_inf() ? (vf64)__builtin_nan("") : r;
  r = x != x | y != y ? x + y : r;
  r = a == 1.0 & __builtin_elementwise_abs(y) == __builtin_inf() ? (vf64)1.0 : r;
  return y == 0.0 | x == 1.0 ? (vf64)1.0 : r;
}

/* x^y to float32 accuracy. */
FN vf64 korch_pow_short_f64(vf64 x, vf64 y) {
  return korch_pow_finish_f64(x, y, korch_exp_f64(y * korch_log_f64(__builtin_elementwise_abs(x))));
}

/* x^y = e^(y log x), the logarithm and the product in twice the digits. */
FN vf64 korch_power_f64(vf64 x, vf64 y) {
  vf64 a = __builtin_elementwise_abs(x);
  vi64 plain = a > 0.0 & a < __builtin_inf();
  korch_pair l = korch_log_pair_f64(plain ? a : (vf64)1.0);
  vf64 p = y * l.high, pl = korch_product_error_f64(y, l.high, p) + y * l.low;
  pl = __builtin_elementwise_abs(p) < 800.0 & __builtin_elementwise_abs(y) < 0x1p100 ? pl : (vf64)0.0;
  vf64 limit = a == 0.0 ? (vf64)-__builtin_inf() : a;
  return korch_pow_finish_f64(x, y, plain ? korch_exp_sum_f64(p, pl) : korch_exp_f64(y * limit));
}

FN vf64 korch_pow_f64_f64(vf64 x, vf64 y) { return korch_power_f64(x, y); }

//@ U = f32 i64 i32 i16 i8 u64 u32 u16 u8
FN vf64 korch_pow_f64_$U(vf64 x, v$U y) { return korch_power_f64(x, __builtin_convertvector(y, vf64)); }

//@ U = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN vf32 korch_pow_f32_$U(vf32 x, v$U y) {
  vf64 r = korch_pow_short_f64(__builtin_convertvector(x, vf64), __builtin_convertvector(y, vf64));
  return __builtin_convertvector(r, vf32);
}

//@ T = i64 i32 i16 i8 u64 u32 u16 u8; U = f32 f64
FN v$T korch_pow_$T_$U(v$T x, v$U y) {
  vf64 r = korch_power_f64(__builtin_convertvector(x, vf64), __builtin_convertvector(y, vf64));
  return korch_cast_f64_$T(r);
}

/* The remainder of x by y with x's sign, exact: eleven bits of the quotient at a time. */
KORCH_SCALAR f64 korch_fmod_1(f64 x, f64 y) {
  union { f64 f; uint64_t i; } a = {x}, b = {y};
  uint64_t sign = a.i & 0x8000000000000000u;
  a.i &= 0x7fffffffffffffff;
  b.i &= 0x7fffffffffffffff;
  if (b.i == 0 || a.i >= 0x7ff0000000000000 || b.i > 0x7ff0000000000000) return (x - x) / (y - y) * __builtin_nan("");
  if (a.i < b.i) return x;
  int ea = (int)(a.i >> 52), eb = (int)(b.i >> 52);
  uint64_t ma = a.i & 0xfffffffffffff, mb = b.i & 0xfffffffffffff;
  if (ea) ma |= 0x10000000000000; else ea = 1;
  if (eb) mb |= 0x10000000000000; else eb = 1;
  int shift = ea - eb;
  ma %= mb;
  for (; shift > 0 && ma; shift -= 11) ma = (ma << (shift < 11 ? shift : 11)) % mb;
  if (!ma) { a.i = sign; return a.f; }
  int up = __builtin_clzll(ma) - 11; /* to the place of the leading bit of a normal number */
  if (up >= eb) a.i = ma << (eb - 1);
  else a.i = ((ma << up) & 0xfffffffffffff) | (uint64_t)(eb - up) << 52;
  a.i |= sign;
  return a.f;
}

FN vf64 korch_fmod_f64(vf64 x, vf64 y) {
  f64 a[W], b[W];
  *(korch_any_f64 *)a = x;
  *(korch_any_f64 *)b = y;
  KORCH_PLAIN for (int i = 0; i < W; i++) a[i] = korch_fmod_1(a[i], b[i]);
  return *(korch_any_f64 *)a;
}

FN vf32 korch_fmod_f32(vf32 x, vf32 y) {
  vf64 r = korch_fmod_f64(__builtin_convertvector(x, vf64), __builtin_convertvector(y, vf64));
  return __builtin_convertvector(r, vf32);
}

//@ T = f32 f64
/* The remainder with the divisor's sign; so has a zero. */
FN v$T korch_mod_$T(v$T x, v$T y) {
  v$T r = korch_fmod_$T(x, y);
  v$T s = (r < 0) != (y < 0) ? r + y : r;
  return r == 0 ? korch_copysign_$T((v$T)0, y) : s;
}

// The rare float32 functions: the float64 ones, rounded (at most 0.51 ulp).

//@ F = sin cos tan asin acos atan sinh cosh asinh acosh atanh
FN vf32 korch_$F_f32(vf32 x) {
  return __builtin_convertvector(korch_$F_f64(__builtin_convertvector(x, vf64)), vf32);
}

FN vf32 korch_atan2_f32(vf32 y, vf32 x) {
  vf64 r = korch_atan2_f64(__builtin_convertvector(y, vf64), __builtin_convertvector(x, vf64));
  return __builtin_convertvector(r, vf32);
}
