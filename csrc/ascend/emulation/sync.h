// The documented functions that order pipes and cores.
#pragma once

#include "core.h"
#include "synchronise.h"

// Ids of flags, by name.
enum event_t {
  EVENT_ID0,
  EVENT_ID1,
  EVENT_ID2,
  EVENT_ID3,
  EVENT_ID4,
  EVENT_ID5,
  EVENT_ID6,
  EVENT_ID7
};

// Documented is `if ASCEND_IS_AIV {`: a condition with its parentheses. More of them do not
// compile.
#define ASCEND_IS_AIV                                  \
  (const auto type = ::tandem::emulation::core().type; \
   type == ::tandem::emulation::CoreType::vector)
#define ASCEND_IS_AIC \
  (const auto type = ::tandem::emulation::core().type; type == ::tandem::emulation::CoreType::cube)

namespace AscendC {

using TEventID = int8_t;

constexpr uint8_t hard_event(pipe_t from, pipe_t to) {
  return static_cast<uint8_t>(from * 16 + to);
}

// The pairs of pipes that a flag may order, named <source>_<destination>.
enum class HardEvent : uint8_t {
  S_V = hard_event(PIPE_S, PIPE_V),
  S_M = hard_event(PIPE_S, PIPE_M),
  S_MTE1 = hard_event(PIPE_S, PIPE_MTE1),
  S_MTE2 = hard_event(PIPE_S, PIPE_MTE2),
  S_MTE3 = hard_event(PIPE_S, PIPE_MTE3),
  S_FIX = hard_event(PIPE_S, PIPE_FIX),
  V_S = hard_event(PIPE_V, PIPE_S),
  V_MTE2 = hard_event(PIPE_V, PIPE_MTE2),
  V_MTE3 = hard_event(PIPE_V, PIPE_MTE3),
  M_S = hard_event(PIPE_M, PIPE_S),
  M_MTE1 = hard_event(PIPE_M, PIPE_MTE1),
  M_MTE2 = hard_event(PIPE_M, PIPE_MTE2),
  M_FIX = hard_event(PIPE_M, PIPE_FIX),
  MTE1_S = hard_event(PIPE_MTE1, PIPE_S),
  MTE1_M = hard_event(PIPE_MTE1, PIPE_M),
  MTE1_MTE2 = hard_event(PIPE_MTE1, PIPE_MTE2),
  MTE1_FIX = hard_event(PIPE_MTE1, PIPE_FIX),
  MTE2_S = hard_event(PIPE_MTE2, PIPE_S),
  MTE2_V = hard_event(PIPE_MTE2, PIPE_V),
  MTE2_M = hard_event(PIPE_MTE2, PIPE_M),
  MTE2_MTE1 = hard_event(PIPE_MTE2, PIPE_MTE1),
  MTE2_MTE3 = hard_event(PIPE_MTE2, PIPE_MTE3),
  MTE2_FIX = hard_event(PIPE_MTE2, PIPE_FIX),
  MTE3_S = hard_event(PIPE_MTE3, PIPE_S),
  MTE3_V = hard_event(PIPE_MTE3, PIPE_V),
  MTE3_MTE1 = hard_event(PIPE_MTE3, PIPE_MTE1),
  MTE3_MTE2 = hard_event(PIPE_MTE3, PIPE_MTE2),
  FIX_S = hard_event(PIPE_FIX, PIPE_S),
  FIX_M = hard_event(PIPE_FIX, PIPE_M),
  FIX_MTE1 = hard_event(PIPE_FIX, PIPE_MTE1),
  FIX_MTE2 = hard_event(PIPE_FIX, PIPE_MTE2),
};

constexpr pipe_t event_source(HardEvent event) {
  return static_cast<pipe_t>(static_cast<uint8_t>(event) / 16);
}
constexpr pipe_t event_target(HardEvent event) {
  return static_cast<pipe_t>(static_cast<uint8_t>(event) % 16);
}

template <HardEvent event>
inline void SetFlag(int32_t id) {
  emulation::set_flag(event_source(event), event_target(event), id);
}

template <HardEvent event>
inline void WaitFlag(int32_t id) {
  emulation::wait_flag(event_source(event), event_target(event), id);
}

template <pipe_t pipe>
inline void PipeBarrier() {
  static_assert(pipe != PIPE_S, "the scalar pipe needs no barrier and has none");
  emulation::barrier(pipe);
}

template <uint8_t mode, pipe_t pipe>
inline void CrossCoreSetFlag(uint16_t id) {
  static_assert(mode <= 2 || mode == 4, "modes are 0, 1, 2 and 4");
  emulation::set_cross_flag(mode, pipe, id);
}

template <uint8_t mode = 0, pipe_t pipe = PIPE_S>
inline void CrossCoreWaitFlag(uint16_t id) {
  static_assert(mode <= 2 || mode == 4, "modes are 0, 1, 2 and 4");
  emulation::wait_cross_flag(mode, pipe, id);
}

template <bool isAIVOnly = true>
inline void SyncAll() {
  emulation::sync_all(isAIVOnly);
}

inline int64_t GetBlockIdx() { return emulation::block_index(); }
inline int64_t GetBlockNum() { return emulation::block_count(); }
inline int64_t GetSubBlockIdx() { return emulation::core().sub_block; }
inline int64_t GetSubBlockNum() { return emulation::core().block->vector_cores; }

}  // namespace AscendC
