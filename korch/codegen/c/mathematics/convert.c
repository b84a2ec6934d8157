// cast and bitcast. korch_cast_T_S: T is the operand's register tag, S the result's storage tag.

//@ T = i64 i32 i16 i8 u64 u32 u16 u8; S = i64 i32 i16 i8 u64 u32 u16 u8 f32 f64
FN v$S korch_cast_$T_$S(v$T x) { return __builtin_convertvector(x, v$S); }

//@ T = f32 f64; S = f32 f64
FN v$S korch_cast_$T_$S(v$T x) { return __builtin_convertvector(x, v$S); }

//@ S = i64 i32 i16 i8 u64 u32 u16 u8 f32 f64
FN v$S korch_cast_b8_$S(vb8 x) { return __builtin_convertvector(-x, v$S); }

FN vb8 korch_cast_b8_b8(vb8 x) { return x; }

//@ T = f32 f64 i64 i32 i16 i8 u64 u32 u16 u8
FN vb8 korch_cast_$T_b8(v$T x) { return __builtin_convertvector((v$T.signed)(x != 0), vi32); }

//@ T = f32 f64; S = i8:-128:127 u8:0:255 i16:-32768:32767 u16:0:65535
/* Bounds first: a conversion out of range has no meaning in C. NaN compares with nothing and becomes 0. */
FN v$S.0 korch_cast_$T_$S.0(v$T x) {
  x = x < (v$T)$S.1 ? (v$T)$S.1 : x;
  x = x > (v$T)$S.2 ? (v$T)$S.2 : x;
  x = x == x ? x : (v$T)0;
  return __builtin_convertvector(__builtin_convertvector(x, vi32), v$S.0);
}

FN vi32 korch_cast_f64_i32(vf64 x) {
  x = x < -2147483648.0 ? (vf64)-2147483648.0 : x;
  x = x > 2147483647.0 ? (vf64)2147483647.0 : x;
  return __builtin_convertvector(x == x ? x : (vf64)0, vi32);
}

FN vu32 korch_cast_f64_u32(vf64 x) {
  x = x < 0.0 ? (vf64)0.0 : x;
  x = x > 4294967295.0 ? (vf64)4294967295.0 : x;
  return __builtin_convertvector(x == x ? x : (vf64)0, vu32);
}

//@ S = i32:-0x1p31:0x7fffff80p0:0x7fffffff u32:0.0:0xffffff00p0:0xffffffffu i64:-0x1p63:0x7fffff8000000000p0:0x7fffffffffffffffll u64:0.0:0xffffff0000000000p0:0xffffffffffffffffull
/* The greatest integer is no float: beyond the float below it, it is set apart. */
FN v$S.0 korch_cast_f32_$S.0(vf32 x) {
  vi32 big = x > (vf32)$S.2;
  x = x < (vf32)$S.1 ? (vf32)$S.1 : x;
  x = x > (vf32)$S.2 ? (vf32)$S.2 : x;
  v$S.0 r = __builtin_convertvector(x == x ? x : (vf32)0, v$S.0);
  return __builtin_convertvector(big, v$S.0.signed) ? (v$S.0)$S.3 : r;
}

//@ S = i64:-0x1p63:0x7ffffffffffffc00p0:0x7fffffffffffffffll u64:0.0:0xfffffffffffff800p0:0xffffffffffffffffull
FN v$S.0 korch_cast_f64_$S.0(vf64 x) {
  vi64 big = x > (vf64)$S.2;
  x = x < (vf64)$S.1 ? (vf64)$S.1 : x;
  x = x > (vf64)$S.2 ? (vf64)$S.2 : x;
  v$S.0 r = __builtin_convertvector(x == x ? x : (vf64)0, v$S.0);
  return big ? (v$S.0)$S.3 : r;
}

/* To float32 toward the odd neighbour, so that rounding the result again to fewer bits rounds once in effect. */
FN vf32 korch_odd_f32(vf64 x) {
  vf32 y = __builtin_convertvector(x, vf32);
  vf64 back = __builtin_convertvector(y, vf64);
  vi32 inexact = __builtin_convertvector(back != x & __builtin_elementwise_abs(x) < __builtin_inf(), vi32);
  vi32 above = __builtin_convertvector(__builtin_elementwise_abs(back) > __builtin_elementwise_abs(x), vi32);
  vi32 bits = (vi32)y + above;
  return (vf32)(inexact ? bits | 1 : (vi32)y);
}

//@ S = f16 bf16
FN vf32 korch_cast_f32_$S(vf32 x) { return korch_widen_$S(korch_narrow_$S(x)); }

//@ S = f16 bf16
FN vf32 korch_cast_f64_$S(vf64 x) { return korch_cast_f32_$S(korch_odd_f32(x)); }

//@ T = i64 i32 u64 u32
FN vf32 korch_cast_$T_bf16(v$T x) { return korch_cast_f64_bf16(__builtin_convertvector(x, vf64)); }

//@ T = i16 i8 u16 u8
FN vf32 korch_cast_$T_bf16(v$T x) { return korch_cast_f32_bf16(__builtin_convertvector(x, vf32)); }

//@ T = i64 i32 i16 i8 u64 u32 u16 u8
FN vf32 korch_cast_$T_f16(v$T x) { return korch_cast_f32_f16(__builtin_convertvector(x, vf32)); }

//@ S = f16 bf16
FN vf32 korch_cast_b8_$S(vb8 x) { return __builtin_convertvector(-x, vf32); }

// korch_bitcast_Q_S: storage tags of operand and result.

//@ Q = f32 i32 u32; S = f32 i32 u32
FN v$S korch_bitcast_$Q_$S(v$Q x) { return (v$S)x; }

//@ Q = f64 i64 u64; S = f64 i64 u64
FN v$S korch_bitcast_$Q_$S(v$Q x) { return (v$S)x; }

//@ Q = i16 u16; S = i16 u16
FN v$S korch_bitcast_$Q_$S(v$Q x) { return (v$S)x; }

//@ Q = i8 u8; S = i8 u8
FN v$S korch_bitcast_$Q_$S(v$Q x) { return (v$S)x; }

//@ Q = i16 u16; S = f16 bf16
FN vf32 korch_bitcast_$Q_$S(v$Q x) { return korch_widen_$S((vu16)x); }

//@ Q = f16 bf16; S = i16 u16
FN v$S korch_bitcast_$Q_$S(vf32 x) { return (v$S)korch_narrow_$Q(x); }

//@ Q = f16 bf16; S = f16 bf16
FN vf32 korch_bitcast_$Q_$S(vf32 x) { return korch_widen_$S(korch_narrow_$Q(x)); }
