#include "copy.h"

#include <cstring>

namespace tandem::emulation {

namespace {

constexpr uint32_t kUnit = 32;
constexpr int64_t kMostStride = (int64_t{1} << 40) - 1;  // in global memory

constexpr Operand kInSource{"DataCopy to local memory, source", Access::read, PIPE_MTE2};
constexpr Operand kInResult{"DataCopy to local memory, destination", Access::write, PIPE_MTE2};
constexpr Operand kOutSource{"DataCopy to global memory, source", Access::read, PIPE_MTE3};
constexpr Operand kOutResult{"DataCopy to global memory, destination", Access::write, PIPE_MTE3};
constexpr Operand kOutSum{"DataCopy to global memory, atomic destination", Access::atomic,
                          PIPE_MTE3};

void require_aligned(const char *what, uint64_t address, uint32_t align) {
  if (address % align != 0)
    fail("misaligned", "align the address as the instruction demands",
         "%s: address %#llx is not a multiple of %u", what,
         static_cast<unsigned long long>(address), align);
}

void require_local(const LocalPlace &place) {
  if (place.space() != Space::UB && place.space() != Space::L1)
    fail("not-modelled", "copy between global memory and UB or L1", "DataCopy with a tensor in %s",
         space_name(place.space()));
  require_aligned("DataCopy, local memory", place.offset, kUnit);
}

template <class T>
void add_to(uint8_t *to, const uint8_t *from, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += sizeof(T)) {
    T sum, value;
    std::memcpy(&sum, to + i, sizeof(T));
    std::memcpy(&value, from + i, sizeof(T));
    sum = static_cast<T>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(value));
    std::memcpy(to + i, &sum, sizeof(T));
  }
}

void store_out(const GlobalPlace &to, int64_t offset, const uint8_t *from, uint64_t bytes) {
  uint8_t *target = touch(to, offset, bytes, core().atomic == kNotAtomic ? kOutResult : kOutSum);
  switch (core().atomic) {
    case kAddS8:
      return add_to<int8_t>(target, from, bytes);
    case kAddS16:
      return add_to<int16_t>(target, from, bytes);
    case kAddS32:
      return add_to<int32_t>(target, from, bytes);
    default:
      std::memcpy(target, from, bytes);
  }
}

void check_blocks(const AscendC::DataCopyParams &blocks) {
  if (blocks.blockCount > 4095)
    fail("bad-parameter", "copy at most 4095 blocks", "DataCopy of %u blocks", blocks.blockCount);
}

void check_counts(uint32_t count, uint64_t bytes) {
  if (count > 4095 || bytes > 2097151)
    fail("bad-parameter", "copy at most 4095 blocks of 2097151 bytes",
         "DataCopyPad of %u blocks of %llu bytes", count, static_cast<unsigned long long>(bytes));
}

void fill(uint8_t *to, uint64_t bytes, const Padding &padding) {
  for (uint64_t i = 0; i < bytes; i += padding.value_bytes)
    std::memcpy(to + i, padding.value, padding.value_bytes);
}

uint64_t whole_units(uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

// One block with its padding; what the hardware writes beside them up to a whole unit holds nothing
// of use.
void pad_block(const LocalPlace &to, uint64_t at, const uint8_t *from, uint64_t bytes,
               const Padding &padding) {
  const uint64_t used = padding.left + bytes + padding.right;
  const uint64_t whole = whole_units(used);
  uint8_t *target = touch(to, at, whole, kInResult);
  std::memcpy(target + padding.left, from, bytes);
  if (padding.filled) {
    fill(target, padding.left, padding);
    fill(target + padding.left + bytes, whole - padding.left - bytes, padding);
  }
  const bool garbage = !padding.filled || (padding.left == 0 && padding.right == 0);
  if (!garbage) return;
  if (!padding.filled) poison(to.space(), to.offset + at, padding.left);
  const uint64_t kept = padding.left + bytes;
  poison(to.space(), to.offset + at + kept, whole - kept);
}

}  // namespace

void copy_in(const LocalPlace &to, const GlobalPlace &from, uint64_t bytes, uint32_t align) {
  require_local(to);
  require_aligned("DataCopy, global memory", from.address, align);
  bytes = bytes / kUnit * kUnit;
  const uint8_t *source = touch(from, 0, bytes, kInSource);
  std::memcpy(touch(to, 0, bytes, kInResult), source, bytes);
}

void copy_out(const GlobalPlace &to, const LocalPlace &from, uint64_t bytes, uint32_t align) {
  require_local(from);
  require_aligned("DataCopy, global memory", to.address, align);
  bytes = bytes / kUnit * kUnit;
  store_out(to, 0, touch(from, 0, bytes, kOutSource), bytes);
}

void copy_blocks_in(const LocalPlace &to, const GlobalPlace &from,
                    const AscendC::DataCopyParams &blocks, uint32_t align) {
  require_local(to);
  require_aligned("DataCopy, global memory", from.address, align);
  check_blocks(blocks);
  const uint64_t bytes = uint64_t{blocks.blockLen} * kUnit;
  for (uint64_t i = 0; i < blocks.blockCount; ++i) {
    const uint8_t *source =
        touch(from, static_cast<int64_t>(i * (bytes + blocks.srcGap * kUnit)), bytes, kInSource);
    std::memcpy(touch(to, i * (bytes + blocks.dstGap * kUnit), bytes, kInResult), source, bytes);
  }
}

void copy_blocks_out(const GlobalPlace &to, const LocalPlace &from,
                     const AscendC::DataCopyParams &blocks, uint32_t align) {
  require_local(from);
  require_aligned("DataCopy, global memory", to.address, align);
  check_blocks(blocks);
  const uint64_t bytes = uint64_t{blocks.blockLen} * kUnit;
  for (uint64_t i = 0; i < blocks.blockCount; ++i) {
    const uint8_t *source = touch(from, i * (bytes + blocks.srcGap * kUnit), bytes, kOutSource);
    store_out(to, static_cast<int64_t>(i * (bytes + blocks.dstGap * kUnit)), source, bytes);
  }
}

void copy_pad_in(const LocalPlace &to, const GlobalPlace &from,
                 const AscendC::DataCopyExtParams &blocks, const Padding &padding, bool compact) {
  require_local(to);
  check_counts(blocks.blockCount, blocks.blockLen);
  if (blocks.blockCount == 0 || blocks.blockLen == 0) return;
  if (blocks.blockLen % padding.value_bytes != 0 || padding.left > kUnit || padding.right > kUnit)
    fail("bad-parameter", "use whole elements, and at most 32 bytes of padding on a side",
         "DataCopyPad of blocks of %u bytes with %u and %u bytes of padding", blocks.blockLen,
         padding.left, padding.right);
  if (blocks.srcStride < -int64_t{blocks.blockLen} || blocks.srcStride > kMostStride ||
      blocks.dstStride < 0 || blocks.dstStride > 65535)
    fail("bad-parameter", "see the ranges on the instruction's page",
         "DataCopyPad with strides %lld and %lld", static_cast<long long>(blocks.srcStride),
         static_cast<long long>(blocks.dstStride));
  if (compact && blocks.blockCount > 1)
    fail("not-modelled", "copy the blocks in normal mode",
         "DataCopyPad of several blocks in compact mode");
  const uint64_t bytes = blocks.blockLen;
  const uint64_t step =
      whole_units(padding.left + bytes + padding.right) + blocks.dstStride * kUnit;
  for (int64_t i = 0; i < blocks.blockCount; ++i) {
    const int64_t at = i * (static_cast<int64_t>(bytes) + blocks.srcStride);
    pad_block(to, static_cast<uint64_t>(i) * step, touch(from, at, bytes, kInSource), bytes,
              padding);
  }
}

void copy_pad_out(const GlobalPlace &to, const LocalPlace &from,
                  const AscendC::DataCopyExtParams &blocks, uint32_t element, bool compact) {
  require_local(from);
  check_counts(blocks.blockCount, blocks.blockLen);
  if (blocks.blockLen % element != 0)
    fail("bad-parameter", "use whole elements",
         "DataCopyPad of blocks of %u bytes of elements of %u", blocks.blockLen, element);
  if (blocks.srcStride < 0 || blocks.srcStride > 65535 || blocks.dstStride < 0 ||
      blocks.dstStride > kMostStride)
    fail("bad-parameter", "see the ranges on the instruction's page",
         "DataCopyPad with strides %lld and %lld", static_cast<long long>(blocks.srcStride),
         static_cast<long long>(blocks.dstStride));
  if (compact && blocks.blockCount > 1)
    fail("not-modelled", "copy the blocks in normal mode",
         "DataCopyPad of several blocks in compact mode");
  const uint64_t bytes = blocks.blockLen;
  const uint64_t step = whole_units(bytes) + static_cast<uint64_t>(blocks.srcStride) * kUnit;
  for (uint64_t i = 0; i < blocks.blockCount && bytes > 0; ++i) {
    const uint8_t *source = touch(from, i * step, bytes, kOutSource);
    store_out(to, static_cast<int64_t>(i * (bytes + static_cast<uint64_t>(blocks.dstStride))),
              source, bytes);
  }
}

}  // namespace tandem::emulation
