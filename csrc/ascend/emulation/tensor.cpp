#include "tensor.h"

namespace tandem::emulation {

LocalPlace place_tensor(AscendC::TPosition position, uint32_t offset, uint64_t bytes) {
  const Space space = space_of(position);
  if (space == Space::GM)
    fail("out-of-range", "use GlobalTensor for global memory",
         "a LocalTensor at a position in global memory");
  if (offset % 32 != 0)
    fail("misaligned", "place tensors at multiples of 32 bytes", "a tensor at %s[%u]",
         space_name(space), offset);
  // A cube core writes its vector cores' UB and they write its L1, at addresses that hold for both.
  const uint32_t size = space == Space::UB   ? 248 << 10
                        : space == Space::L1 ? 512 << 10
                                             : core().memory(space).size;
  if (offset + bytes > size)
    fail("out-of-range", "stay within the memory", "a tensor at %s[%u, %llu) of %u bytes",
         space_name(space), offset, static_cast<unsigned long long>(offset + bytes), size);
  const uint32_t end = static_cast<uint32_t>(offset + bytes);
  if (space == Space::UB && core().ub_top < end) core().ub_top = end;
  return {offset, offset, end, position};
}

void fail_outside_global(const GlobalPlace &place, uint64_t address, uint64_t bytes,
                         const char *what) {
  fail("out-of-range", "stay within the size given to SetGlobalBuffer",
       "%s: bytes %lld to %lld of a global tensor of %llu bytes", what,
       static_cast<long long>(address - place.begin),
       static_cast<long long>(address + bytes - place.begin),
       static_cast<unsigned long long>(place.end - place.begin));
}

}  // namespace tandem::emulation
