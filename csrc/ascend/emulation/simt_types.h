// dim3 and the short vectors of the SIMT API.
//
// Written from the page "内置数据类型" of the SIMT part of the public documentation.
#pragma once

#include <cstdint>

struct dim3 {
  unsigned int x, y, z;
  dim3(unsigned int x, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
};

#define TANDEM_SHORT_VECTORS(name, type)                                                 \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };                               \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };                         \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }                       \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; } \
  static_assert(true)

TANDEM_SHORT_VECTORS(char, signed char);
TANDEM_SHORT_VECTORS(uchar, unsigned char);
TANDEM_SHORT_VECTORS(short, short);
TANDEM_SHORT_VECTORS(ushort, unsigned short);
TANDEM_SHORT_VECTORS(int, int);
TANDEM_SHORT_VECTORS(uint, unsigned int);
TANDEM_SHORT_VECTORS(float, float);
TANDEM_SHORT_VECTORS(longlong, long long);
TANDEM_SHORT_VECTORS(ulonglong, unsigned long long);
#undef TANDEM_SHORT_VECTORS
