// Queues, event ids and flags used in ways that hang or corrupt.
#include "scenario.h"

using namespace AscendC;

SCENARIO(__vector__, 1, take_from_an_empty_queue, "queue-empty") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  auto tensor = queue.AllocTensor<float>();
  if (fixed) queue.EnQue(tensor);
  tensor = queue.DeQue<float>();
  queue.FreeTensor(tensor);
}

SCENARIO(__vector__, 1, no_buffer_left, "queue-no-buffer") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 2, 256);
  auto first = queue.AllocTensor<float>();
  auto second = queue.AllocTensor<float>();
  if (fixed) queue.FreeTensor(first);
  auto third = queue.AllocTensor<float>();
  queue.FreeTensor(second);
  queue.FreeTensor(third);
}

SCENARIO(__vector__, 1, more_than_the_depth, "queue-full") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 2, 256);
  auto first = queue.AllocTensor<float>();
  auto second = queue.AllocTensor<float>();
  queue.EnQue(first);
  if (fixed) first = queue.DeQue<float>();
  queue.EnQue(second);
  second = queue.DeQue<float>();
}

SCENARIO(__vector__, 1, enqueued_twice, "queue-misuse") {
  TPipe pipe;
  TQue<TPosition::VECIN, 2> queue;
  pipe.InitBuffer(queue, 2, 256);
  auto tensor = queue.AllocTensor<float>();
  queue.EnQue(tensor);
  if (!fixed) queue.EnQue(tensor);
  tensor = queue.DeQue<float>();
}

SCENARIO(__vector__, 1, freed_twice, "queue-misuse") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  auto tensor = queue.AllocTensor<float>();
  queue.FreeTensor(tensor);
  if (!fixed) queue.FreeTensor(tensor);
}

SCENARIO(__vector__, 1, freed_in_another_queue, "queue-foreign-tensor") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue, other;
  pipe.InitBuffer(queue, 1, 256);
  pipe.InitBuffer(other, 1, 256);
  auto tensor = queue.AllocTensor<float>();
  if (fixed)
    queue.FreeTensor(tensor);
  else
    other.FreeTensor(tensor);
}

SCENARIO(__vector__, 1, left_in_the_queue, "flag-unbalanced") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  auto tensor = queue.AllocTensor<float>();
  queue.EnQue(tensor);
  if (fixed) tensor = queue.DeQue<float>();
}

SCENARIO(__vector__, 1, nine_buffers, "too-many-buffers") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, fixed ? 8 : 9, 256);
}

SCENARIO(__vector__, 1, nine_buffers_at_a_position, "too-many-buffers") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue, other;
  TQue<TPosition::VECOUT, 1> out;
  pipe.InitBuffer(queue, 6, 256);
  pipe.InitBuffer(other, fixed ? 2 : 3, 256);
  pipe.InitBuffer(out, 8, 256);
}

SCENARIO(__vector__, 1, second_pipe, "two-pipes") {
  TPipe pipe;
  if (fixed) return;
  TPipe another;
}

SCENARIO(__vector__, 1, no_event_id_left, "event-exhausted") {
  TPipe pipe;
  for (int i = 0; i < 9; ++i) {
    const TEventID id = pipe.AllocEventID<HardEvent::MTE2_V>();
    if (fixed) pipe.ReleaseEventID<HardEvent::MTE2_V>(id);
  }
}

SCENARIO(__vector__, 1, event_id_released_twice, "bad-flag") {
  TPipe pipe;
  const TEventID id = pipe.AllocEventID<HardEvent::MTE2_V>();
  pipe.ReleaseEventID<HardEvent::MTE2_V>(id);
  if (!fixed) pipe.ReleaseEventID<HardEvent::MTE2_V>(id);
}

SCENARIO(__vector__, 1, wait_without_set, "wait-without-set") {
  if (fixed) SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
}

SCENARIO(__vector__, 1, wait_for_another_id, "wait-without-set") {
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_V>(fixed ? EVENT_ID0 : EVENT_ID1);
}

SCENARIO(__vector__, 1, set_twice, "set-twice") {
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  if (fixed) WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
}

SCENARIO(__vector__, 1, flag_left_set, "flag-unbalanced") {
  SetFlag<HardEvent::V_MTE3>(EVENT_ID3);
  if (fixed) WaitFlag<HardEvent::V_MTE3>(EVENT_ID3);
}

SCENARIO(__vector__, 1, no_such_flag, "bad-flag") {
  const int32_t id = fixed ? 7 : 8;
  SetFlag<HardEvent::V_MTE3>(id);
  WaitFlag<HardEvent::V_MTE3>(id);
}
