#include "queue.h"

#include <cstring>
#include <exception>

namespace tandem::emulation {

namespace {

using AscendC::TPosition;

// Which pipe fills the tensors of a queue, and which reads them.
struct Ends {
  pipe_t producer, consumer;
};

Ends ends_of(TPosition source, TPosition target) {
  const auto is = [&](TPosition from, TPosition to) { return source == from && target == to; };
  if (is(TPosition::GM, TPosition::VECIN)) return {PIPE_MTE2, PIPE_V};
  if (is(TPosition::VECOUT, TPosition::GM)) return {PIPE_V, PIPE_MTE3};
  if (is(TPosition::VECIN, TPosition::VECOUT)) return {PIPE_MTE2, PIPE_MTE3};
  if (is(TPosition::VECCALC, TPosition::VECCALC)) return {PIPE_V, PIPE_V};
  if (source == TPosition::GM && space_of(target) == Space::L1) return {PIPE_MTE2, PIPE_MTE1};
  if (space_of(source) == Space::L1) return {PIPE_MTE1, PIPE_M};
  if (is(TPosition::CO1, TPosition::GM)) return {PIPE_M, PIPE_FIX};
  fail("not-modelled", "bind positions that this emulation knows", "a queue from position %d to %d",
       static_cast<int>(source), static_cast<int>(target));
}

constexpr const char *kOverflow[] = {"",
                                     "ub-overflow",
                                     "l1-overflow",
                                     "l0a-overflow",
                                     "l0b-overflow",
                                     "l0c-overflow",
                                     "bt-overflow",
                                     "fb-overflow"};

}  // namespace

Queue::Queue(TPosition source, TPosition target, uint32_t depth)
    : position_(space_of(source) == Space::GM || space_of(source) == Space::L1 ? target : source),
      producer_(ends_of(source, target).producer),
      consumer_(ends_of(source, target).consumer),
      depth_(depth == 0 ? 1 : depth) {}

Queue::~Queue() {
  if (waiting_ > 0 && std::uncaught_exceptions() == 0) core().late_fault = "flag-unbalanced";
}

void Queue::add_buffer(const LocalPlace &place) {
  if (count_ == kMostBuffers)
    fail("too-many-buffers", "give a queue 8 buffers at most",
         "a queue has one event id for each of its buffers");
  buffers_[count_++].place = place;
}

bool Queue::has_idle() const {
  for (uint32_t i = 0; i < count_; ++i)
    if (buffers_[i].state == State::idle) return true;
  return false;
}

LocalPlace Queue::alloc() {
  for (uint32_t i = 0; i < count_; ++i) {
    Buffer &buffer = buffers_[(next_ + i) % count_];
    if (buffer.state != State::idle) continue;
    next_ = (next_ + i + 1) % count_;
    buffer.state = State::filled;
    if (buffer.used) core().agent(producer_).acquire(buffer.freed);
    poison(buffer.place.space(), buffer.place.begin, buffer.place.end - buffer.place.begin);
    return buffer.place;
  }
  fail("queue-no-buffer", "free a tensor first, or give InitBuffer more buffers",
       "AllocTensor finds all %u buffers of the queue in use", count_);
}

// The buffer that a tensor came from; parts of it will not do.
Queue::Buffer &Queue::owner(const LocalPlace &place, const char *what) {
  for (uint32_t i = 0; i < count_; ++i)
    if (buffers_[i].place.offset == place.offset && buffers_[i].place.position == place.position)
      return buffers_[i];
  fail("queue-foreign-tensor",
       "pass the tensor that AllocTensor or DeQue of the same queue returned",
       "%s of a tensor that is not a buffer of this queue", what);
}

void Queue::enqueue(const LocalPlace &place) {
  Buffer &buffer = owner(place, "EnQue");
  if (buffer.state != State::filled)
    fail("queue-misuse", "enqueue what AllocTensor returned, once", "EnQue of a tensor that is %s",
         buffer.state == State::idle ? "free" : "in the queue or taken out of it");
  if (waiting_ == depth_)
    fail("queue-full", "take tensors out first, or make the queue deeper",
         "EnQue into a queue of depth %u that is full", depth_);
  buffer.state = State::queued;
  buffer.queued = core().agent(producer_).release();
  order_[waiting_++] = static_cast<uint8_t>(&buffer - buffers_);
}

LocalPlace Queue::dequeue() {
  if (waiting_ == 0) fail("queue-empty", "enqueue a tensor first", "DeQue of an empty queue");
  Buffer &buffer = buffers_[order_[0]];
  std::memmove(order_, order_ + 1, --waiting_);
  buffer.state = State::taken;
  core().agent(consumer_).acquire(buffer.queued);
  return buffer.place;
}

void Queue::free(const LocalPlace &place) {
  Buffer &buffer = owner(place, "FreeTensor");
  if (buffer.state != State::filled && buffer.state != State::taken)
    fail("queue-misuse", "free what DeQue returned, once", "FreeTensor of a tensor that is %s",
         buffer.state == State::idle ? "free already" : "in the queue");
  buffer.state = State::idle;
  buffer.used = true;
  buffer.freed = core().agent(consumer_).release();
  poison(place.space(), buffer.place.begin, buffer.place.end - buffer.place.begin);
}

Pipe::Pipe() {
  if (core().pipe != nullptr)
    fail("two-pipes", "make one TPipe a kernel and pass it on", "a second TPipe on one core");
  core().pipe = this;
}

Pipe::~Pipe() {
  if (std::uncaught_exceptions() > 0) return;
  barrier(PIPE_ALL);
  core().pipe = nullptr;
}

LocalPlace Pipe::allocate(TPosition position, uint32_t bytes) {
  const Space space = space_of(position);
  if (space == Space::GM)
    fail("not-modelled", "give buffers a position in local memory", "InitBuffer in global memory");
  uint32_t &used = used_[static_cast<int>(space)];
  const uint32_t size = core().memory(space).size;
  if (size == 0)
    fail("wrong-core", "make the buffer on the core that has the memory",
         "InitBuffer in %s, which this core has not", space_name(space));
  const uint64_t whole = (uint64_t{bytes} + 31) / 32 * 32;
  if (used + whole > size)
    fail(kOverflow[static_cast<int>(space)], "tile smaller, by the sizes in tandem_ascend_device",
         "InitBuffer of %u bytes, %u of %u are taken", bytes, used, size);
  const LocalPlace place = place_tensor(position, used, whole);
  used += static_cast<uint32_t>(whole);
  return place;
}

void Pipe::count_buffers(uint32_t number) {
  buffers_ += number;
  if (buffers_ > 64)
    fail("too-many-buffers", "use 64 buffers a kernel at most", "InitBuffer of buffer %u",
         buffers_);
}

// Each of them takes an event id of the pair of pipes that the position stands for.
void Pipe::count_events(TPosition position, uint32_t number) {
  uint32_t &queued = queued_[static_cast<int>(position)];
  queued += number;
  if (queued > kMostBuffers)
    fail("too-many-buffers", "give all queues of a position 8 buffers at most, by joining some",
         "InitBuffer makes %u buffers of queues at position %d", queued,
         static_cast<int>(position));
}

void Pipe::reset() {
  barrier(PIPE_ALL);
  for (uint32_t &used : used_) used = 0;
  for (uint32_t &queued : queued_) queued = 0;
  buffers_ = 0;
}

AscendC::TEventID Pipe::take_event(AscendC::HardEvent event, bool hold) {
  uint8_t &held = held_[static_cast<uint8_t>(event)];
  for (int8_t id = 0; id < kFlags; ++id) {
    if ((held >> id & 1) != 0) continue;
    if (hold) held = static_cast<uint8_t>(held | 1u << id);
    return id;
  }
  fail("event-exhausted", "release event ids that are done with",
       "all 8 ids of an event are in use");
}

void Pipe::give_event(AscendC::HardEvent event, AscendC::TEventID id) {
  uint8_t &held = held_[static_cast<uint8_t>(event)];
  if (id < 0 || id >= kFlags || (held >> id & 1) == 0)
    fail("bad-flag", "release what AllocEventID returned, once",
         "ReleaseEventID of id %d, which is not held", id);
  held = static_cast<uint8_t>(held & ~(1u << id));
}

}  // namespace tandem::emulation
