#include "register_unaligned.h"

namespace tandem::emulation {

namespace {

void write_block(const Place<Space::UB> &place, const uint8_t *image, uint32_t count,
                 const Register &reg) {
  static constexpr Operand kOperand{"vector store", Access::write, PIPE_V};
  if (count == 0) return;
  uint8_t *to = touch(place, count, kOperand);
  register_order().store(reg, place.offset, count);
  std::memcpy(to, image, count);
}

}  // namespace

void store_unaligned(const Place<Space::UB> &place, const Register &src, UnalignRegForStore &helper,
                     uint32_t count) {
  vector_function.require("StoreUnAlign");
  if (count > uint32_t(kRegisterBytes))
    fail("out-of-range", "store at most one register", "StoreUnAlign of %u bytes", count);
  const uint32_t waiting = helper.end - helper.begin;
  if (waiting != 0 && helper.end != place.offset)
    fail("unaligned-register", "call StoreUnAlignPost before going on elsewhere",
         "StoreUnAlign at UB offset %u, while bytes for offset %u wait in its helper register",
         place.offset, helper.begin);
  ByteSet needed = kNone;
  for (uint32_t i = 0; i < count; ++i) put(needed, int(i), true);
  require_known(src, needed, "StoreUnAlign");

  uint8_t image[32 + kRegisterBytes];
  std::memcpy(image, helper.bytes, waiting);
  std::memcpy(image + waiting, src.bytes, count);
  Register joined;
  joined.sources = src.sources;
  joined.sources.merge(helper.sources);
  const uint32_t begin = place.offset - waiting, end = place.offset + count;
  const uint32_t kept = std::min(end % 32, end - begin);
  register_order().next_store(joined);
  write_block(place.moved(-int64_t(waiting)), image, end - kept - begin, joined);
  if ((waiting == 0) != (kept == 0)) vector_function.bytes_wait += kept == 0 ? -1 : 1;
  helper.begin = end - kept;
  helper.end = end;
  std::memcpy(helper.bytes, image + (end - kept - begin), kept);
  helper.sources = joined.sources;
}

void store_rest(const Place<Space::UB> &place, UnalignRegForStore &helper) {
  vector_function.require("StoreUnAlignPost");
  const uint32_t waiting = helper.end - helper.begin;
  if (waiting == 0) return;
  if (helper.end != place.offset)
    fail("unaligned-register",
         "give StoreUnAlignPost the address that the last StoreUnAlign ended at",
         "StoreUnAlignPost at UB offset %u, while bytes up to offset %u wait", place.offset,
         helper.end);
  Register reg;
  reg.sources = helper.sources;
  register_order().next_store(reg);
  write_block(place.moved(-int64_t(waiting)), helper.bytes, waiting, reg);
  helper.begin = helper.end = 0;
  --vector_function.bytes_wait;
}

}  // namespace tandem::emulation
