// What launches touch, counted while somebody asks: tests hold the plans that launchers state
// against it.
#pragma once

#include <cstdint>

#include "../../include/tandem_ascend.h"

// One launch. Bytes of global memory: of all accesses together, and distinct ones. Of UB and L1:
// read and written by all cores together.
typedef struct tandem_ascend_counts {
  int32_t mixed;  // cores of a block: 0 a vector core, 1 a cube core, 2 both
  int32_t blocks;
  int64_t read, distinct_read;
  int64_t written, distinct_written;
  int64_t ub, l1;
} tandem_ascend_counts;

// Count launches from here on (1), or stop (0); what was counted before is forgotten by 1 only.
TANDEM_API void tandem_ascend_count(int32_t on);

// Launches counted, in their order: up to `room` of them go to `counts`. Returns how many there
// are; launches that ended in a fault are not among them.
TANDEM_API int32_t tandem_ascend_counted(tandem_ascend_counts *counts, int32_t room);

namespace tandem::emulation {

enum class Space : uint8_t;
enum class Access : uint8_t;
struct Launch;

extern bool counting;

// An access that passed all checks.
void count_access(Space space, uint64_t address, uint64_t bytes, Access access);

// The accesses since the last launch were those of this one.
void count_launch(const Launch &launch, bool faulty);

}  // namespace tandem::emulation
