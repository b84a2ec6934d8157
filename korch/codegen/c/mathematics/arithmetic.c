// Elementwise arithmetic that C's operators do not give, comparisons, selection, horizontal reductions.

//@ T = f32 f64
/* a * b + c, rounded once where the hardware does so. */
FN v$T korch_fma_$T(v$T a, v$T b, v$T c) {
#if KORCH_FMA
  return __builtin_elementwise_fma(a, b, c);
#else
  return a * b + c;
#endif
}

//@ T = i64 i32 i16 i8 u64 u32 u16 u8
FN v$T korch_fma_$T(v$T a, v$T b, v$T c) { return a * b + c; }

//@ T = f32 f64 i64 i32 i16 i8
FN v$T korch_abs_$T(v$T x) { return __builtin_elementwise_abs(x); }

//@ T = u64 u32 u16 u8
FN v$T korch_abs_$T(v$T x) { return x; }

//@ T = f32 f64 i64 i32 i16 i8
/* NaN stays. */
FN v$T korch_sign_$T(v$T x) {
  v$T r = x > 0 ? (v$T)1 : x;
  return x < 0 ? (v$T)-1 : r;
}

//@ T = u64 u32 u16 u8
FN v$T korch_sign_$T(v$T x) { return x > 0 ? (v$T)1 : x; }

//@ T = f32 f64
/* The magnitude of x with the sign of s. */
FN v$T korch_copysign_$T(v$T x, v$T s) {
  v$T.signed bit = (v$T.signed)(v$T)-0.0;
  return (v$T)(((v$T.signed)x & ~bit) | ((v$T.signed)s & bit));
}

//@ T = f32 f64
FN v$T korch_sqrt_$T(v$T x) { return __builtin_elementwise_sqrt(x); }

//@ T = f32:0x1p23f f64:0x1p52
/* To the nearest integer, half to even; a zero keeps its sign. */
FN v$T.0 korch_round_$T.0(v$T.0 x) {
#if __SSE4_1__ || __aarch64__
  return __builtin_elementwise_roundeven(x);
#else
  v$T.0 a = __builtin_elementwise_abs(x), r = (a + $T.1) - $T.1;
  return korch_copysign_$T.0(a < $T.1 ? r : x, x);
#endif
}

//@ T = f32 f64
FN v$T korch_floor_$T(v$T x) {
#if __SSE4_1__ || __aarch64__
  return __builtin_elementwise_floor(x);
#else
  v$T r = korch_round_$T(x);
  return korch_copysign_$T(r > x ? r - 1 : r, x);
#endif
}

//@ T = f32 f64
FN v$T korch_ceil_$T(v$T x) {
#if __SSE4_1__ || __aarch64__
  return __builtin_elementwise_ceil(x);
#else
  v$T r = korch_round_$T(x);
  return korch_copysign_$T(r < x ? r + 1 : r, x);
#endif
}

//@ T = f32 f64
FN v$T korch_trunc_$T(v$T x) {
#if __SSE4_1__ || __aarch64__
  return __builtin_elementwise_trunc(x);
#else
  v$T a = __builtin_elementwise_abs(x), r = korch_round_$T(a);
  return korch_copysign_$T(r > a ? r - 1 : r, x);
#endif
}

//@ T = f32 f64
FN vb8 korch_isnan_$T(v$T x) { return __builtin_convertvector((v$T.signed)(x != x), vi32); }

//@ T = f32 f64
FN vb8 korch_isinf_$T(v$T x, int positive, int negative) {
  v$T.signed p = x == (v$T)__builtin_inf(), n = x == (v$T)-__builtin_inf();
  return __builtin_convertvector((p & -positive) | (n & -negative), vi32);
}

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN vb8 korch_eq_$T(v$T a, v$T b) { return __builtin_convertvector((v$T.signed)(a == b), vi32); }

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN vb8 korch_lt_$T(v$T a, v$T b) { return __builtin_convertvector((v$T.signed)(a < b), vi32); }

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN vb8 korch_le_$T(v$T a, v$T b) { return __builtin_convertvector((v$T.signed)(a <= b), vi32); }

FN vb8 korch_eq_b8(vb8 a, vb8 b) { return ~(a ^ b); }

FN vb8 korch_lt_b8(vb8 a, vb8 b) { return ~a & b; }

FN vb8 korch_le_b8(vb8 a, vb8 b) { return ~a | b; }

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN v$T korch_where_$T(vb8 c, v$T a, v$T b) { return __builtin_convertvector(c, v$T.signed) ? a : b; }

FN vb8 korch_where_b8(vb8 c, vb8 a, vb8 b) { return (c & a) | (~c & b); }

//@ T = f32 f64
/* NaN wins. Give a constant as the second operand: then one instruction is left. */
FN v$T korch_max_$T(v$T a, v$T b) {
#if __aarch64__
  return __builtin_elementwise_maximum(a, b);
#else
  v$T m = b > a ? b : a;
  return b == b ? m : b;
#endif
}

//@ T = f32 f64
FN v$T korch_min_$T(v$T a, v$T b) {
#if __aarch64__
  return __builtin_elementwise_minimum(a, b);
#else
  v$T m = b < a ? b : a;
  return b == b ? m : b;
#endif
}

//@ T = f32 f64
/* Between two finite bounds; NaN passes. */
FN v$T korch_clamp_$T(v$T x, $T low, $T high) {
#if __aarch64__
  return __builtin_elementwise_minimum(__builtin_elementwise_maximum(x, (v$T)low), (v$T)high);
#else
  x = x < low ? (v$T)low : x;
  return x > high ? (v$T)high : x;
#endif
}

//@ T = i64 i32 i16 i8 u64 u32 u16 u8; S = max min
FN v$T korch_$S_$T(v$T a, v$T b) { return __builtin_elementwise_$S(a, b); }

FN vb8 korch_max_b8(vb8 a, vb8 b) { return a | b; }

FN vb8 korch_min_b8(vb8 a, vb8 b) { return a & b; }

//@ T = f32 f64
FN v$T korch_div_$T(v$T a, v$T b) { return a / b; }

//@ T = i8:f32 i16:f32 i32:f64
/* Through a float wide enough that no quotient rounds up to an integer; zero and -1 (which overflows) apart. */
FN v$T.0 korch_div_$T.0(v$T.0 a, v$T.0 b) {
  v$T.0 safe = b == 0 | b == -1 ? (v$T.0)1 : b;
  v$T.1 q = __builtin_convertvector(a, v$T.1) / __builtin_convertvector(safe, v$T.1);
  v$T.0 r = __builtin_convertvector(__builtin_convertvector(q, vi32), v$T.0);
  r = b == -1 ? -a : r;
  return b == 0 ? (v$T.0)0 : r;
}

//@ T = u8:f32:i32 u16:f32:i32 u32:f64:u32
FN v$T.0 korch_div_$T.0(v$T.0 a, v$T.0 b) {
  v$T.0 safe = b == 0 ? (v$T.0)1 : b;
  v$T.1 q = __builtin_convertvector(a, v$T.1) / __builtin_convertvector(safe, v$T.1);
  v$T.0 r = __builtin_convertvector(__builtin_convertvector(q, v$T.2), v$T.0);
  return b == 0 ? (v$T.0)0 : r;
}

FN vi64 korch_div_i64(vi64 a, vi64 b) {
  vi64 r = a / (b == 0 | b == -1 ? (vi64)1 : b);
  r = b == -1 ? -a : r;
  return b == 0 ? (vi64)0 : r;
}

FN vu64 korch_div_u64(vu64 a, vu64 b) {
  vu64 r = a / (b == 0 ? (vu64)1 : b);
  return b == 0 ? (vu64)0 : r;
}

//@ T = i64 i32 i16 i8 u64 u32 u16 u8
/* The remainder with the dividend's sign; by zero 0. */
FN v$T korch_fmod_$T(v$T a, v$T b) { return b == 0 ? (v$T)0 : a - korch_div_$T(a, b) * b; }

//@ T = u64 u32 u16 u8
FN v$T korch_mod_$T(v$T a, v$T b) { return korch_fmod_$T(a, b); }

//@ T = i64 i32 i16 i8
/* The remainder with the divisor's sign; by zero 0. */
FN v$T korch_mod_$T(v$T a, v$T b) {
  v$T r = korch_fmod_$T(a, b);
  return r != 0 & (r ^ b) < 0 ? r + b : r;
}

//@ T = u64:64 u32:32 u16:16 u8:8
FN v$T.0 korch_shift_left_$T.0(v$T.0 a, v$T.0 b) { return b < $T.1 ? a << (b & ($T.1 - 1)) : (v$T.0)0; }

//@ T = u64:64 u32:32 u16:16 u8:8
FN v$T.0 korch_shift_right_$T.0(v$T.0 a, v$T.0 b) { return b < $T.1 ? a >> (b & ($T.1 - 1)) : (v$T.0)0; }

//@ T = i64 i32 i16 i8 u64 u32 u16 u8
/* By squaring, wrapping. A negative exponent gives the reciprocal truncated: of 1 and -1 their powers, else 0. */
FN v$T korch_power_$T(v$T a, vu64 b) {
  v$T r = (v$T)1;
  _Pragma("clang loop unroll(disable)") for (int i = 0; i < 64; i++) {
    r = __builtin_convertvector(b & 1, v$T) != 0 ? r * a : r;
    a = a * a;
    b >>= 1;
    if (!__builtin_reduce_or(b)) break;
  }
  return r;
}

//@ T = i64 i32 i16 i8 u64 u32 u16 u8; U = u64 u32 u16 u8
FN v$T korch_pow_$T_$U(v$T a, v$U b) { return korch_power_$T(a, __builtin_convertvector(b, vu64)); }

//@ T = i64 i32 i16 i8 u64 u32 u16 u8; U = i64 i32 i16 i8
FN v$T korch_pow_$T_$U(v$T a, v$U b) {
  v$T.signed odd = -__builtin_convertvector(b & 1, v$T.signed);
  v$T.signed below = __builtin_convertvector((v$U)(b < 0), v$T.signed);
  v$T least = ($T)-1 < 0 ? (v$T)-1 : (v$T)1;
  v$T reciprocal = a == 1 ? (v$T)1 : (v$T)0;
  reciprocal = a == least ? (odd ? least : (v$T)1) : reciprocal;
  v$T r = korch_power_$T(a, __builtin_convertvector(b < 0 ? (v$U)0 : b, vu64));
  return below ? reciprocal : r;
}

// Horizontal reductions: lane i meets lane i ^ W/2, then i ^ W/4, ..., always in this order.

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN $T korch_reduce_sum_$T(v$T v) {
  $HALVES(v = v + @;)
  return v[0];
}

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN $T korch_reduce_prod_$T(v$T v) {
  $HALVES(v = v * @;)
  return v[0];
}

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8; S = max min
FN $T korch_reduce_$S_$T(v$T v) {
  $HALVES(v = korch_$S_$T(v, @);)
  return v[0];
}

/* Any and all of a mask, 0 or 1. */
FN int korch_reduce_max_b8(vb8 v) { return __builtin_reduce_or(v) & 1; }

FN int korch_reduce_min_b8(vb8 v) { return __builtin_reduce_and(v) & 1; }
