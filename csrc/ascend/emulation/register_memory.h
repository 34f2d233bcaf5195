// How loads and stores of registers touch UB, and the aligned loads and stores.
//
// Written from the pages "连续对齐搬入（LoadAlign）" and "连续对齐搬出（StoreAlign）". A load may
// read bytes that were never written: their lanes are then unusable. It reads as many bytes as its
// distribution says, whatever a mask will select later, and all of them must lie in the buffer.
#pragma once

#include <bitset>

#include "register_lanes.h"
#include "register_order.h"

namespace AscendC::Reg {

enum class LoadDist {
  DIST_NORM,
  DIST_BRC_B8,
  DIST_BRC_B16,
  DIST_BRC_B32,
  DIST_US_B8,
  DIST_US_B16,
  DIST_DS_B8,
  DIST_DS_B16,
  DIST_UNPACK_B8,
  DIST_UNPACK_B16,
  DIST_UNPACK_B32,
  DIST_UNPACK4_B8,
  DIST_BLK,
  DIST_E2B_B16,
  DIST_E2B_B32,
  DIST_DINTLV_B8,
  DIST_DINTLV_B16,
  DIST_DINTLV_B32,
};

enum class StoreDist {
  DIST_NORM,
  DIST_NORM_B8,
  DIST_NORM_B16,
  DIST_NORM_B32,
  DIST_FIRST_ELEMENT_B8,
  DIST_FIRST_ELEMENT_B16,
  DIST_FIRST_ELEMENT_B32,
  DIST_PACK_B16,
  DIST_PACK_B32,
  DIST_PACK_B64,
  DIST_PACK4_B32,
  DIST_INTLV_B8,
  DIST_INTLV_B16,
  DIST_INTLV_B32,
};

}  // namespace AscendC::Reg

namespace tandem::emulation {

using AscendC::Reg::LoadDist;
using AscendC::Reg::StoreDist;

// What a distribution of a load does: bytes it reads, alignment, width of the elements it is for
// (0: any), and the byte of memory that a byte of the register comes from (-1: a zero).
struct LoadShape {
  int bytes, align, width;
  int (*source)(int byte, int part);
};

template <int width>
constexpr int doubled(int byte, int) {
  return byte / width / 2 * width + byte % width;
}
template <int width>
constexpr int halved(int byte, int part) {
  return (byte / width * 2 + part) * width + byte % width;
}
template <int width, int zeros>
constexpr int spread(int byte, int) {
  return byte / width % (zeros + 1) ? -1 : byte / width / (zeros + 1) * width + byte % width;
}
template <int width>
constexpr int each_block(int byte, int) {
  return byte / 32 * width + byte % width;
}
template <int bytes>
constexpr int repeated(int byte, int) {
  return byte % bytes;
}

constexpr LoadShape shape_of(LoadDist dist) {
  switch (dist) {
    case LoadDist::DIST_NORM:
      return {256, 32, 0, repeated<256>};
    case LoadDist::DIST_BRC_B8:
      return {1, 1, 1, repeated<1>};
    case LoadDist::DIST_BRC_B16:
      return {2, 2, 2, repeated<2>};
    case LoadDist::DIST_BRC_B32:
      return {4, 4, 4, repeated<4>};
    case LoadDist::DIST_US_B8:
      return {128, 32, 1, doubled<1>};
    case LoadDist::DIST_US_B16:
      return {128, 32, 2, doubled<2>};
    case LoadDist::DIST_DS_B8:
      return {512, 32, 1, halved<1>};
    case LoadDist::DIST_DS_B16:
      return {512, 32, 2, halved<2>};
    case LoadDist::DIST_UNPACK_B8:
      return {128, 32, 1, spread<1, 1>};
    case LoadDist::DIST_UNPACK_B16:
      return {128, 32, 2, spread<2, 1>};
    case LoadDist::DIST_UNPACK_B32:
      return {128, 32, 4, spread<4, 1>};
    case LoadDist::DIST_UNPACK4_B8:
      return {64, 32, 1, spread<1, 3>};
    case LoadDist::DIST_BLK:
      return {32, 32, 0, repeated<32>};
    case LoadDist::DIST_E2B_B16:
      return {16, 16, 2, each_block<2>};
    case LoadDist::DIST_E2B_B32:
      return {32, 32, 4, each_block<4>};
    case LoadDist::DIST_DINTLV_B8:
      return {512, 32, 1, halved<1>};
    case LoadDist::DIST_DINTLV_B16:
      return {512, 32, 2, halved<2>};
    case LoadDist::DIST_DINTLV_B32:
      return {512, 32, 4, halved<4>};
  }
  return {};
}

constexpr bool is_double(LoadDist dist) { return dist >= LoadDist::DIST_DINTLV_B8; }

// Bytes of UB on their way into registers, and which of them were ever written.
struct Loaded {
  const uint8_t *bytes;
  std::bitset<2 * kRegisterBytes> known;
};

template <int bytes, int align>
Loaded load_bytes(const char *what, const Place<Space::UB> &place) {
  static constexpr Operand kOperand{"vector load", Access::read_any, PIPE_V, align};
  vector_function.require(what);
  Loaded loaded{touch(place, bytes, kOperand), {}};
  if (is_written(Space::UB, place.offset, bytes)) {
    loaded.known.set();
  } else {
    for (int i = 0; i < bytes; ++i) loaded.known[i] = is_written(Space::UB, place.offset + i, 1);
  }
  return loaded;
}

// The register's bytes from those of memory. `part` is 1 for the second register of a double load.
template <LoadDist dist>
void fill(Register &reg, const Loaded &loaded, int part) {
  constexpr LoadShape kShape = shape_of(dist);
  if constexpr (dist == LoadDist::DIST_NORM) {
    std::memcpy(reg.bytes, loaded.bytes, kRegisterBytes);
    if (loaded.known.all()) {
      reg.known = kAll;
      return;
    }
  }
  for (int i = 0; i < kRegisterBytes; ++i) {
    const int from = kShape.source(i, part);
    reg.bytes[i] = from < 0 ? 0 : loaded.bytes[from];
    put(reg.known, i, from < 0 || loaded.known[from]);
  }
}

template <typename T, LoadDist dist, typename... R>
void load_aligned(const Ub<T> &address, R &...regs) {
  constexpr LoadShape kShape = shape_of(dist);
  static_assert(kShape.width == 0 || kShape.width == sizeof(T),
                "the distribution is for another width");
  static_assert(sizeof(T) < 8 || dist == LoadDist::DIST_NORM,
                "elements of 8 bytes load with DIST_NORM only");
  static_assert(is_double(dist) == (sizeof...(R) == 2),
                "DIST_DINTLV loads two registers, others load one");
  const Place<Space::UB> &place = address.place();
  const Loaded loaded = load_bytes<kShape.bytes, kShape.align>("LoadAlign", place);
  RegisterOrder &order = register_order();
  const Sources number = order.next_load();
  (order.load(regs, place.offset, kShape.bytes), ...);
  int part = 0;
  (fill<dist>(regs, loaded, part++), ...);
  ((regs.sources = number), ...);
}

// Write the selected bytes of a register's image, in runs of neighbours.
template <int align>
void store_bytes(const char *what, const Register &reg, const uint8_t *image,
                 const Place<Space::UB> &place, const std::bitset<2 * kRegisterBytes> &selected) {
  static constexpr Operand kOperand{"vector store", Access::write, PIPE_V};
  vector_function.require(what);
  if (place.offset % align)
    fail("misaligned", "align the address, or use Store",
         "%s writes to UB offset %u, which is no multiple of %d", what, place.offset, align);
  RegisterOrder &order = register_order();
  order.next_store(reg);
  for (uint32_t begin = 0; begin < selected.size(); ++begin) {
    if (!selected[begin]) continue;
    uint32_t end = begin;
    while (end < selected.size() && selected[end]) ++end;
    uint8_t *to = touch(place.moved(begin), end - begin, kOperand);
    order.store(reg, place.offset + begin, end - begin);
    std::memcpy(to, image + begin, end - begin);
    begin = end;
  }
}

constexpr int packed_width(StoreDist dist) {
  switch (dist) {
    case StoreDist::DIST_PACK_B16:
      return 2;
    case StoreDist::DIST_PACK_B32:
      return 4;
    case StoreDist::DIST_PACK4_B32:
      return 4;
    case StoreDist::DIST_PACK_B64:
      return 8;
    default:
      return 0;
  }
}

constexpr int first_width(StoreDist dist) {
  switch (dist) {
    case StoreDist::DIST_FIRST_ELEMENT_B8:
      return 1;
    case StoreDist::DIST_FIRST_ELEMENT_B16:
      return 2;
    case StoreDist::DIST_FIRST_ELEMENT_B32:
      return 4;
    default:
      return 0;
  }
}

constexpr int normal_width(StoreDist dist) {
  switch (dist) {
    case StoreDist::DIST_NORM_B8:
      return 1;
    case StoreDist::DIST_NORM_B16:
      return 2;
    case StoreDist::DIST_NORM_B32:
      return 4;
    default:
      return 0;
  }
}

// The low part of every element of `width` bytes, next to one another. Where the mask selects other
// than the first elements the documentation leaves open where they go.
template <int width, int kept>
void store_packed(const Register &reg, const Place<Space::UB> &place, const MaskReg &mask) {
  const ByteSet selected = selected_bytes(mask, width, "StoreAlign");
  uint8_t image[kRegisterBytes];
  std::bitset<2 * kRegisterBytes> written;
  int count = 0;
  while (count < kRegisterBytes / width && has(selected, count * width)) ++count;
  for (int i = count; i < kRegisterBytes / width; ++i)
    if (has(selected, i * width))
      fail("not-modelled", "select the first elements", "StoreAlign packs under a mask with gaps");
  ByteSet needed = kNone;
  for (int i = 0; i < count * kept; ++i) {
    const int from = i / kept * width + i % kept;
    image[i] = reg.bytes[from];
    put(needed, from, true);
    written[i] = true;
  }
  require_known(reg, needed, "StoreAlign");
  store_bytes<32>("StoreAlign", reg, image, place, written);
}

template <typename T, StoreDist dist>
void store_aligned(const Ub<T> &address, const Register &reg, const MaskReg &mask) {
  constexpr int kNormal = normal_width(dist), kFirst = first_width(dist),
                kPacked = packed_width(dist);
  const Place<Space::UB> &place = address.place();
  std::bitset<2 * kRegisterBytes> written;
  if constexpr (kPacked != 0) {
    store_packed<kPacked, dist == StoreDist::DIST_PACK4_B32 ? 1 : kPacked / 2>(reg, place, mask);
  } else if constexpr (kFirst != 0) {
    static_assert(kFirst == sizeof(T), "the distribution is for another width");
    ByteSet first = kNone;
    for (int i = 0; i < kFirst; ++i) put(first, i, true), written[i] = true;
    require_known(reg, first, "StoreAlign");
    store_bytes<kFirst>("StoreAlign", reg, reg.bytes, place, written);
  } else {
    static_assert(kNormal == 0 || kNormal == sizeof(T), "the distribution is for another width");
    const ByteSet selected = selected_bytes(mask, sizeof(T), "StoreAlign");
    require_known(reg, selected, "StoreAlign");
    for (int i = 0; i < kRegisterBytes; ++i) written[i] = has(selected, i);
    store_bytes<32>("StoreAlign", reg, reg.bytes, place, written);
  }
}

// As one store of a register of its own, which waits for the sources of both.
template <typename T>
void store_interleaved(const Ub<T> &address, const Register &even, const Register &odd) {
  uint8_t image[2 * kRegisterBytes];
  for (int i = 0; i < 2 * kRegisterBytes; ++i) {
    const int element = i / int(sizeof(T));
    image[i] = (element % 2 ? odd : even).bytes[element / 2 * int(sizeof(T)) + i % int(sizeof(T))];
  }
  Register both;
  both.sources = even.sources;
  both.sources.merge(odd.sources);
  std::bitset<2 * kRegisterBytes> all;
  store_bytes<32>("StoreAlign", both, image, address.place(), all.set());
}

template <typename T>
Ub<T> moved(const Ub<T> &address, const AscendC::Reg::AddrReg &offset) {
  if (offset.element_size != int(sizeof(T)))
    fail("uninitialised-read", "call CreateAddrReg with the element type of the address",
         "an AddrReg is used that was not created, or that counts elements of another size");
  return address + int64_t(offset.elements);
}

}  // namespace tandem::emulation
