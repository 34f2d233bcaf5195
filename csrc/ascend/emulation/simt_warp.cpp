#include "simt_warp.h"

namespace tandem::emulation {

uint32_t shuffle_from(uint32_t lane, uint32_t argument, uint32_t width) {
  return lane / width * width + argument % width;
}

// Where the source would lie outside of the group, a lane gets its own value.
uint32_t shuffle_up(uint32_t lane, uint32_t argument, uint32_t width) {
  return argument > lane % width ? lane : lane - argument;
}

uint32_t shuffle_down(uint32_t lane, uint32_t argument, uint32_t width) {
  return argument >= width - lane % width ? lane : lane + argument;
}

uint32_t shuffle_xor(uint32_t lane, uint32_t argument, uint32_t) { return lane ^ argument; }

void fail_inactive(uint32_t lane, uint32_t source) {
  fail("inactive-lane", "let all lanes of the group reach the shuffle",
       "lane %u reads lane %u in a shuffle that this one does not take part in", lane, source);
}

void set_all(const WarpCall &call, uint64_t result) {
  for (uint32_t lane = 0; lane < kWarp; ++lane)
    if ((call.active >> lane) & 1) call.lanes[lane]->result = result;
}

namespace {

uint32_t lanes_that_say_yes(const WarpCall &call) {
  uint32_t lanes = 0;
  for (uint32_t lane = 0; lane < kWarp; ++lane)
    if (((call.active >> lane) & 1) && call.lanes[lane]->value != 0) lanes |= 1u << lane;
  return lanes;
}

}  // namespace

void ballot(const WarpCall &call) { set_all(call, lanes_that_say_yes(call)); }
void any(const WarpCall &call) { set_all(call, lanes_that_say_yes(call) != 0); }
void all(const WarpCall &call) { set_all(call, lanes_that_say_yes(call) == call.active); }

uint32_t lane_number(const char *what) { return simt_threads(what).number % kWarp; }

uint32_t checked_width(int32_t width) {
  if (width < 1 || width > int32_t(kWarp) || (width & (width - 1)) != 0)
    fail("undefined-result", "use groups of 1, 2, 4, 8, 16 or 32 lanes",
         "a shuffle in groups of %d lanes", width);
  return uint32_t(width);
}

}  // namespace tandem::emulation
