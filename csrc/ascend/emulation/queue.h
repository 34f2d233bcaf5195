// TPipe, TQue, TQueBind and TBuf: who owns which part of local memory, and the flags that follow
// it.
#pragma once

#include "sync.h"
#include "tensor.h"

namespace tandem::emulation {

constexpr uint32_t kMostBuffers = 8;  // of a queue, and event ids of a pair of pipes

// A queue without its template parameters.
class Queue {
 public:
  Queue(AscendC::TPosition source, AscendC::TPosition target, uint32_t depth);
  Queue(const Queue &) = delete;
  ~Queue();

  void add_buffer(const LocalPlace &place);
  LocalPlace alloc();
  void enqueue(const LocalPlace &place);
  LocalPlace dequeue();
  void free(const LocalPlace &place);

  AscendC::TPosition position() const { return position_; }
  uint32_t waiting() const { return waiting_; }
  bool has_idle() const;

 private:
  enum class State : uint8_t { idle, filled, queued, taken };
  struct Buffer {
    LocalPlace place;
    State state = State::idle;
    bool used = false;  // `freed` says when it may be written again
    Clock queued;
    Clock freed;
  };

  AscendC::TPosition position_;
  pipe_t producer_, consumer_;
  uint32_t depth_;
  Buffer buffers_[kMostBuffers];
  uint8_t order_[kMostBuffers];  // the buffers in the queue, oldest first
  uint32_t count_ = 0, waiting_ = 0, next_ = 0;

  Buffer &owner(const LocalPlace &place, const char *what);
};

// The part of TPipe that is no template.
class Pipe {
 public:
  Pipe();
  Pipe(const Pipe &) = delete;
  ~Pipe();

  LocalPlace allocate(AscendC::TPosition position, uint32_t bytes);
  void count_buffers(uint32_t number);
  void count_events(AscendC::TPosition position, uint32_t number);
  void reset();

  AscendC::TEventID take_event(AscendC::HardEvent event, bool hold);
  void give_event(AscendC::HardEvent event, AscendC::TEventID id);

 private:
  uint32_t used_[8] = {};  // bytes by space
  uint32_t buffers_ = 0;
  uint32_t queued_[16] = {};  // buffers of queues by position
  uint8_t held_[256] = {};    // ids by event
};

}  // namespace tandem::emulation

namespace AscendC {

template <TPosition source, TPosition target, int32_t depth, auto mask = 0>
class TQueBind : public emulation::Queue {
 public:
  TQueBind() : Queue(source, target, depth) {}

  template <class T>
  LocalTensor<T> AllocTensor() {
    static_assert(depth > 0, "a queue of depth 0 takes the tensor as an argument");
    return LocalTensor<T>(alloc());
  }
  template <class T>
  void AllocTensor(LocalTensor<T> &tensor) {
    static_assert(depth == 0, "a queue of depth above 0 returns the tensor");
    tensor = LocalTensor<T>(alloc());
  }
  template <class T>
  bool EnQue(const LocalTensor<T> &tensor) {
    enqueue(tensor.place());
    return true;
  }
  template <class T>
  LocalTensor<T> DeQue() {
    static_assert(depth > 0, "a queue of depth 0 takes the tensor as an argument");
    return LocalTensor<T>(dequeue());
  }
  template <class T>
  void DeQue(LocalTensor<T> &tensor) {
    static_assert(depth == 0, "a queue of depth above 0 returns the tensor");
    tensor = LocalTensor<T>(dequeue());
  }
  template <class T>
  void FreeTensor(LocalTensor<T> &tensor) {
    free(tensor.place());
  }
  bool HasTensorInQue() const { return waiting() > 0; }
  bool HasIdleBuffer() const { return has_idle(); }
  int32_t GetTensorCountInQue() const { return static_cast<int32_t>(waiting()); }
};

// A queue is named by where its tensors lie; the other end follows from that.
constexpr TPosition queue_source(TPosition position) {
  switch (position) {
    case TPosition::A2:
      return TPosition::A1;
    case TPosition::B2:
      return TPosition::B1;
    case TPosition::C2:
      return TPosition::C1;
    case TPosition::CO1:
    case TPosition::VECOUT:
    case TPosition::VECCALC:
      return position;
    default:
      return TPosition::GM;
  }
}
constexpr TPosition queue_target(TPosition position) {
  return position == TPosition::CO1 || position == TPosition::VECOUT ? TPosition::GM : position;
}

template <TPosition position, int32_t depth, auto mask = 0>
class TQue : public TQueBind<queue_source(position), queue_target(position), depth, mask> {};

template <TPosition position = TPosition::LCM>
class TBuf {
 public:
  template <class T>
  LocalTensor<T> Get() const {
    return LocalTensor<T>(place_);
  }
  template <class T>
  LocalTensor<T> Get(uint32_t length) const {
    return GetWithOffset<T>(length, 0);
  }
  // `size` elements from `offset` bytes on.
  template <class T>
  LocalTensor<T> GetWithOffset(uint32_t size, uint32_t offset) const {
    const uint64_t first = uint64_t{place_.offset} + offset,
                   last = first + uint64_t{size} * sizeof(T);
    if (last > place_.end)
      emulation::fail("out-of-range", "ask InitBuffer for more bytes",
                      "%u elements at byte %u of a TBuf of %u bytes", size, offset,
                      place_.end - place_.begin);
    const uint32_t begin = static_cast<uint32_t>(first);
    return LocalTensor<T>(
        emulation::LocalPlace{begin, begin, static_cast<uint32_t>(last), position});
  }

  void set_place(const emulation::LocalPlace &place) { place_ = place; }

 private:
  emulation::LocalPlace place_;
};

class TPipe : public emulation::Pipe {
 public:
  template <class Q>
  bool InitBuffer(Q &queue, uint8_t number, uint32_t length) {
    count_buffers(number);
    count_events(queue.position(), number);
    for (uint32_t i = 0; i < number; ++i) queue.add_buffer(allocate(queue.position(), length));
    return true;
  }
  template <TPosition position>
  bool InitBuffer(TBuf<position> &buffer, uint32_t length) {
    count_buffers(1);
    buffer.set_place(allocate(position, length));
    return true;
  }

  void Reset() { reset(); }

  template <HardEvent event>
  TEventID AllocEventID() {
    return take_event(event, true);
  }
  template <HardEvent event>
  TEventID FetchEventID() {
    return take_event(event, false);
  }
  TEventID FetchEventID(HardEvent event) { return take_event(event, false); }
  template <HardEvent event>
  void ReleaseEventID(TEventID id) {
    give_event(event, id);
  }
};

inline TPipe *GetTPipePtr() {
  return static_cast<TPipe *>(static_cast<emulation::Pipe *>(emulation::core().pipe));
}

}  // namespace AscendC
