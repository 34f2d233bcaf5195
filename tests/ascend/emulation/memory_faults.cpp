// Capacity, range, alignment, and reading what was never written.
#include "scenario.h"

using namespace AscendC;

namespace {

constexpr uint32_t kCount = 64;
const DataCopyExtParams kRow{1, kCount * 4, 0, 0, 0};

GlobalTensor<float> whole(Gm<float> pointer) {
  GlobalTensor<float> tensor;
  tensor.SetGlobalBuffer(pointer, 4096);
  return tensor;
}

}  // namespace

SCENARIO(__vector__, 1, too_large_for_ub, "ub-overflow") {
  TPipe pipe;
  TBuf<TPosition::VECCALC> buffer;
  pipe.InitBuffer(buffer, 200 * 1024);
  TBuf<TPosition::VECCALC> another;
  pipe.InitBuffer(another, fixed ? 48 * 1024 : 48 * 1024 + 1);
}

SCENARIO(__cube__, 1, too_large_for_l1, "l1-overflow") {
  TPipe pipe;
  TBuf<TPosition::A1> buffer;
  pipe.InitBuffer(buffer, fixed ? 512 * 1024 : 513 * 1024);
}

SCENARIO(__cube__, 1, ub_of_a_cube_core, "wrong-core") {
  TPipe pipe;
  TBuf<TPosition::VECCALC> vector;
  TBuf<TPosition::B1> cube;
  if (fixed)
    pipe.InitBuffer(cube, 1024);
  else
    pipe.InitBuffer(vector, 1024);
}

SCENARIO(__vector__, 1, tensor_behind_ub, "out-of-range") {
  LocalTensor<float> tensor(TPosition::VECCALC, 248 * 1024 - 256, fixed ? 64 : 65);
  Duplicate(tensor, 1.0f, 64);
}

SCENARIO(__vector__, 1, misaligned_in_ub, "misaligned") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, 2 * kCount);
  DataCopyPad(tensor[fixed ? 8 : 7], whole(x), kRow, {});
}

SCENARIO(__vector__, 1, misaligned_in_global_memory, "misaligned") {
  LocalTensor<int16_t> tensor(TPosition::VECCALC, 0, kCount);
  GlobalTensor<int16_t> source;
  source.SetGlobalBuffer(Gm<int16_t>(Gm<uint8_t>(x) + (fixed ? 2 : 1)));
  DataCopy(tensor, source, kCount);
}

SCENARIO(__vector__, 1, outside_of_registered_memory, "out-of-range") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  GlobalTensor<float> source;
  source.SetGlobalBuffer(x);
  DataCopyPad(tensor, source[fixed ? 4096 - kCount : 4097 - kCount], kRow, {});
}

SCENARIO(__vector__, 1, outside_of_the_global_tensor, "out-of-range") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  GlobalTensor<float> source;
  source.SetGlobalBuffer(x, fixed ? kCount : kCount - 1);
  DataCopyPad(tensor, source, kRow, {});
}

SCENARIO(__vector__, 1, null_pointer, "out-of-range") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  GlobalTensor<float> source;
  source.SetGlobalBuffer(fixed ? x : nullptr);
  DataCopyPad(tensor, source, kRow, {});
}

SCENARIO(__vector__, 1, outside_of_the_buffer, "out-of-range") {
  TPipe pipe;
  TBuf<TPosition::VECCALC> buffer, neighbour;
  pipe.InitBuffer(buffer, fixed ? kCount * 4 : kCount * 4 - 32);
  pipe.InitBuffer(neighbour, 1024);
  DataCopyPad(buffer.Get<float>(), whole(x), kRow, {});
}

SCENARIO(__vector__, 1, element_outside_of_the_tensor, "out-of-range") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  tensor.SetValue(fixed ? kCount - 1 : kCount, 1.0f);
}

SCENARIO(__vector__, 1, element_outside_of_global_memory, "out-of-range") {
  const float value = fixed ? x[4095] : x[4096];
  static_cast<void>(value);
}

SCENARIO(__vector__, 1, never_written, "uninitialised-read") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  Duplicate(tensor, 1.0f, fixed ? kCount : kCount - 1);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  DataCopyPad(whole(y), tensor, kRow);
}

SCENARIO(__vector__, 1, written_for_the_last_owner, "uninitialised-read") {
  TPipe pipe;
  TQue<TPosition::VECOUT, 1> queue;
  pipe.InitBuffer(queue, 1, kCount * 4);
  for (int turn = 0; turn < 2; ++turn) {
    auto tensor = queue.AllocTensor<float>();
    if (fixed || turn == 0) Duplicate(tensor, 1.0f, kCount);
    queue.EnQue(tensor);
    tensor = queue.DeQue<float>();
    DataCopyPad(whole(y), tensor, kRow);
    queue.FreeTensor(tensor);
  }
}

SCENARIO(__vector__, 1, used_after_it_was_freed, "uninitialised-read") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, kCount * 4);
  auto tensor = queue.AllocTensor<float>();
  DataCopyPad(tensor, whole(x), kRow, {});
  queue.EnQue(tensor);
  tensor = queue.DeQue<float>();
  if (!fixed) queue.FreeTensor(tensor);
  Adds(tensor, tensor, 1.0f, kCount);
  if (fixed) queue.FreeTensor(tensor);
}

SCENARIO(__vector__, 1, bytes_beside_a_padded_row, "uninitialised-read") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  DataCopyPad(tensor, whole(x), {1, (kCount - 2) * 4, 0, 0, 0}, {fixed, 0, 2, 0.0f});
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
  Adds(tensor, tensor, 1.0f, kCount);
}

SCENARIO(__vector__, 1, too_many_padding_bytes, "bad-parameter") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, 2 * kCount);
  DataCopyPad(tensor, whole(x), kRow, {true, 0, static_cast<uint8_t>(fixed ? 8 : 9), 0.0f});
}

SCENARIO(__vector__, 1, parts_of_elements_stored, "bad-parameter") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  Duplicate(tensor, 1.0f, kCount);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  DataCopyPad(whole(y), tensor, {1, fixed ? 12u : 10u, 0, 0, 0});
}

SCENARIO(__vector__, 1, more_blocks_than_there_are, "bad-parameter") {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  DataCopyParams blocks{uint16_t(fixed ? 8 : 4096), 1, 0, 0};
  DataCopy(tensor, whole(x), blocks);
}
