// Flags between pipes and between cores, as the documented functions of sync.h use them.
#pragma once

#include <cstdint>

#include "clocks.h"

namespace tandem::emulation {

// A message of, and to, all pipes of the current core.
Clock release_all();
void acquire_all(const Clock &message);

void set_flag(pipe_t from, pipe_t to, int32_t id);
void wait_flag(pipe_t from, pipe_t to, int32_t id);

void set_cross_flag(uint8_t mode, pipe_t pipe, uint16_t id);
void wait_cross_flag(uint8_t mode, pipe_t pipe, uint16_t id);

void sync_all(bool vector_only);

}  // namespace tandem::emulation
