// Missing order between pipes of one core: each scenario leaves one flag or barrier out.
#include "scenario.h"

using namespace AscendC;

namespace {

constexpr uint32_t kCount = 64;
const DataCopyExtParams kRow{1, kCount * 4, 0, 0, 0};

template <HardEvent event>
void order_pipes(bool given = true) {
  if (!given) return;
  SetFlag<event>(EVENT_ID0);
  WaitFlag<event>(EVENT_ID0);
}

struct Tile {
  LocalTensor<float> local{TPosition::VECCALC, 0, kCount};
  GlobalTensor<float> in, out;

  Tile(Gm<float> x, Gm<float> y) {
    in.SetGlobalBuffer(x, 4096);
    out.SetGlobalBuffer(y, 4096);
  }
  void load() { DataCopyPad(local, in, kRow, {}); }
  void compute() { Adds(local, local, 1.0f, kCount); }
  void store() { DataCopyPad(out, local, kRow); }
};

}  // namespace

SCENARIO(__vector__, 1, mte2_to_v, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  order_pipes<HardEvent::MTE2_V>(fixed);
  tile.compute();
}

SCENARIO(__vector__, 1, v_to_mte3, "missing-synchronisation") {
  Tile tile(x, y);
  Duplicate(tile.local, 1.0f, kCount);
  order_pipes<HardEvent::V_MTE3>(fixed);
  tile.store();
}

SCENARIO(__vector__, 1, mte2_to_mte3, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  order_pipes<HardEvent::MTE2_MTE3>(fixed);
  tile.store();
}

SCENARIO(__vector__, 1, mte3_to_mte2_reuse, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  order_pipes<HardEvent::MTE2_MTE3>();
  tile.store();
  order_pipes<HardEvent::MTE3_MTE2>(fixed);
  tile.load();
}

SCENARIO(__vector__, 1, v_to_mte2_reuse, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  order_pipes<HardEvent::MTE2_V>();
  tile.compute();
  order_pipes<HardEvent::V_MTE2>(fixed);
  tile.load();
}

SCENARIO(__vector__, 1, mte3_to_v_reuse, "missing-synchronisation") {
  Tile tile(x, y);
  Duplicate(tile.local, 1.0f, kCount);
  order_pipes<HardEvent::V_MTE3>();
  tile.store();
  order_pipes<HardEvent::MTE3_V>(fixed);
  Duplicate(tile.local, 2.0f, kCount);
}

SCENARIO(__vector__, 1, mte2_to_s, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  order_pipes<HardEvent::MTE2_S>(fixed);
  tile.local.GetValue(3);
}

SCENARIO(__vector__, 1, v_to_s, "missing-synchronisation") {
  Tile tile(x, y);
  Duplicate(tile.local, 1.0f, kCount);
  order_pipes<HardEvent::V_S>(fixed);
  tile.local.GetValue(3);
}

SCENARIO(__vector__, 1, s_to_v, "missing-synchronisation") {
  Tile tile(x, y);
  for (uint32_t i = 0; i < kCount; ++i) tile.local.SetValue(i, 1.0f);
  order_pipes<HardEvent::S_V>(fixed);
  tile.compute();
}

SCENARIO(__vector__, 1, s_to_mte3, "missing-synchronisation") {
  Tile tile(x, y);
  for (uint32_t i = 0; i < kCount; ++i) tile.local.SetValue(i, 1.0f);
  order_pipes<HardEvent::S_MTE3>(fixed);
  tile.store();
}

SCENARIO(__vector__, 1, s_to_mte2_reuse, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  order_pipes<HardEvent::MTE2_S>();
  tile.local.GetValue(3);
  order_pipes<HardEvent::S_MTE2>(fixed);
  tile.load();
}

SCENARIO(__vector__, 1, mte2_over_mte2, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  if (fixed) PipeBarrier<PIPE_MTE2>();
  tile.load();
}

SCENARIO(__vector__, 1, mte3_over_mte3, "missing-synchronisation") {
  Tile tile(x, y);
  Duplicate(tile.local, 1.0f, kCount);
  order_pipes<HardEvent::V_MTE3>();
  tile.store();
  if (fixed) PipeBarrier<PIPE_MTE3>();
  tile.store();
}

SCENARIO(__vector__, 1, through_global_memory, "missing-synchronisation") {
  Tile tile(x, y);
  Duplicate(tile.local, 1.0f, kCount);
  order_pipes<HardEvent::V_MTE3>();
  tile.store();
  LocalTensor<float> again(TPosition::VECCALC, 1024, kCount);
  order_pipes<HardEvent::MTE3_MTE2>(fixed);
  DataCopyPad(again, tile.out, kRow, {});
}

SCENARIO(__vector__, 1, flag_of_another_pair, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  order_pipes<HardEvent::MTE2_V>();
  // V is behind MTE2 now, MTE3 is not.
  order_pipes<HardEvent::V_MTE3>(fixed);
  tile.store();
}

SCENARIO(__vector__, 1, flag_set_too_early, "missing-synchronisation") {
  Tile tile(x, y);
  if (!fixed) SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  tile.load();
  if (fixed) SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
  tile.compute();
}

SCENARIO(__vector__, 1, barrier_of_another_pipe, "missing-synchronisation") {
  Tile tile(x, y);
  tile.load();
  if (fixed)
    PipeBarrier<PIPE_ALL>();
  else
    PipeBarrier<PIPE_MTE2>();
  tile.compute();
}

SCENARIO(__vector__, 1, second_reader_is_forgotten, "missing-synchronisation") {
  Tile tile(x, y);
  LocalTensor<float> sum(TPosition::VECCALC, 1024, kCount);
  tile.load();
  order_pipes<HardEvent::MTE2_V>();
  order_pipes<HardEvent::MTE2_MTE3>();
  tile.store();
  Adds(sum, tile.local, 1.0f, kCount);
  order_pipes<HardEvent::V_MTE2>();
  order_pipes<HardEvent::MTE3_MTE2>(fixed);
  tile.load();
}

SCENARIO(__vector__, 1, queue_passed_by, "missing-synchronisation") {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, kCount * 4);
  GlobalTensor<float> in;
  in.SetGlobalBuffer(x, 4096);
  auto tensor = queue.AllocTensor<float>();
  DataCopyPad(tensor, in, kRow, {});
  if (fixed) {
    queue.EnQue(tensor);
    tensor = queue.DeQue<float>();
  }
  Adds(tensor, tensor, 1.0f, kCount);
  queue.FreeTensor(tensor);
}
