// Memories of the device, and `access`, through which every modelled instruction touches them.
#pragma once

#include <cstdint>

#include "shadow.h"

namespace tandem::emulation {

struct Core;

// L0A_MX and L0B_MX hold the scales of L0A and L0B, a sixteenth of their size.
enum class Space : uint8_t { GM, UB, L1, L0A, L0B, L0C, BT, FB, L0A_MX, L0B_MX };
constexpr int kLocalSpaces = 9;  // all but GM

const char *space_name(Space space);

// What an instruction states about one operand. Make it `static constexpr` at the place of use.
struct Operand {
  const char *what;  // "DataCopyPad, destination"
  Access access;
  pipe_t pipe;
  uint16_t align = 1;     // of the address, in bytes
  bool in_order = false;  // documented as ordered after earlier accesses of the same pipe
};

// The memory of a core. Contents are poison (0xFF) at the start of a launch and after AllocTensor.
struct Memory {
  uint8_t *bytes = nullptr;
  uint32_t size = 0;
  Shadow shadow;
};

// Check and record an access of the current core, and return where the bytes lie on the host.
// `address` is an offset within a local memory, a host address for GM. Faults: out-of-range,
// misaligned, uninitialised-read, missing-synchronisation. After a write the caller fills all
// `bytes` at once.
uint8_t *access(Space space, uint64_t address, uint64_t bytes, const Operand &operand);

// The same with the local memory of another core of the block: L0C to the UB of a vector core, UB
// to L1.
uint8_t *access_of(Core &owner, Space space, uint64_t address, uint64_t bytes,
                   const Operand &operand);

// Whether the program wrote all of these bytes since the buffer was allocated; records no access.
bool is_written(Space space, uint64_t address, uint64_t bytes);

// Forget the contents of a buffer that is handed out again.
void poison(Space space, uint64_t address, uint64_t bytes);

}  // namespace tandem::emulation
