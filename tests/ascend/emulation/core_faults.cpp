// Order between cores, and kernels started on the wrong ones.
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

// Write `count` floats of y from `first` on, by MTE3, which the caller orders with what follows.
void write(Gm<float> y, uint32_t first, uint32_t count) {
  LocalTensor<float> tensor(TPosition::VECCALC, 0, kCount);
  Duplicate(tensor, 1.0f, kCount);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  DataCopyPad(whole(y)[first], tensor, {1, count * 4, 0, 0, 0});
}

void read(Gm<float> y, uint32_t first) {
  LocalTensor<float> tensor(TPosition::VECCALC, 1024, kCount);
  DataCopyPad(tensor, whole(y)[first], kRow, {});
}

}  // namespace

SCENARIO(__mix__(0, 1), 4, blocks_without_sync_all, "missing-synchronisation") {
  const uint32_t me = static_cast<uint32_t>(GetBlockIdx());
  write(y, me * kCount, kCount);
  if (fixed) SyncAll();
  read(y, (me + 1) % 4 * kCount);
}

SCENARIO(__mix__(0, 1), 4, overwritten_before_it_was_read, "missing-synchronisation") {
  const uint32_t me = static_cast<uint32_t>(GetBlockIdx());
  read(y, (me + 3) % 4 * kCount);
  if (fixed) SyncAll();
  write(y, me * kCount, kCount);
}

SCENARIO(__vector__, 4, neighbours_overlap_by_a_float, "missing-synchronisation") {
  const uint32_t me = static_cast<uint32_t>(GetBlockIdx());
  write(y, me * 3, fixed ? 3 : 4);
}

SCENARIO(__mix__(0, 1), 4, flag_of_the_wrong_pipe, "missing-synchronisation") {
  const uint32_t me = static_cast<uint32_t>(GetBlockIdx());
  write(y, me * kCount, kCount);
  if (fixed)
    CrossCoreSetFlag<0, PIPE_MTE3>(0);
  else
    CrossCoreSetFlag<0, PIPE_V>(0);
  CrossCoreWaitFlag(0);
  read(y, (me + 1) % 4 * kCount);
}

SCENARIO(__mix__(1, 2), 2, vector_to_cube_without_flag, "missing-synchronisation") {
  if ASCEND_IS_AIV {
    write(y, static_cast<uint32_t>(GetBlockIdx()) * kCount, kCount);
    if (fixed) CrossCoreSetFlag<2, PIPE_MTE3>(3);
  }
  if ASCEND_IS_AIC {
    LocalTensor<float> tensor(TPosition::A1, 0, 2 * kCount);
    if (fixed) CrossCoreWaitFlag<2, PIPE_MTE2>(3);
    DataCopy(tensor, whole(y)[static_cast<uint64_t>(GetBlockIdx()) * 2 * kCount], 2 * kCount);
  }
}

SCENARIO(__mix__(1, 2), 2, cube_waits_for_one_of_two, "missing-synchronisation") {
  if ASCEND_IS_AIV {
    write(y, static_cast<uint32_t>(GetBlockIdx()) * kCount, kCount);
    if (fixed || GetSubBlockIdx() == 0) CrossCoreSetFlag<4, PIPE_MTE3>(3);
  }
  if ASCEND_IS_AIC {
    LocalTensor<float> tensor(TPosition::A1, 0, 2 * kCount);
    CrossCoreWaitFlag<4, PIPE_MTE2>(3);
    if (fixed) CrossCoreWaitFlag<4, PIPE_MTE2>(16 + 3);
    DataCopy(tensor, whole(y)[static_cast<uint64_t>(GetBlockIdx()) * 2 * kCount], 2 * kCount);
  }
}

SCENARIO(__mix__(1, 2), 2, cube_to_vector_reuse, "missing-synchronisation") {
  if ASCEND_IS_AIC {
    LocalTensor<float> tensor(TPosition::A1, 0, 2 * kCount);
    DataCopy(tensor, whole(y)[static_cast<uint64_t>(GetBlockIdx()) * 2 * kCount], 2 * kCount);
    if (fixed) CrossCoreSetFlag<4, PIPE_MTE2>(5);
    if (fixed) CrossCoreSetFlag<4, PIPE_MTE2>(16 + 5);
  }
  if ASCEND_IS_AIV {
    if (fixed) CrossCoreWaitFlag<4, PIPE_MTE3>(5);
    write(y, static_cast<uint32_t>(GetBlockIdx()) * kCount, kCount);
  }
}

SCENARIO(__mix__(1, 2), 2, vector_cores_meet_without_the_cube, "missing-synchronisation") {
  if ASCEND_IS_AIV
    write(y, static_cast<uint32_t>(GetBlockIdx()) * kCount, kCount);
  if (fixed)
    SyncAll<false>();
  else
    SyncAll<true>();
  if ASCEND_IS_AIC {
    LocalTensor<float> tensor(TPosition::A1, 0, kCount);
    DataCopy(tensor, whole(y)[static_cast<uint64_t>(1 - GetBlockIdx()) * 2 * kCount], kCount);
  }
}

SCENARIO(__mix__(0, 1), 4, atomic_beside_a_plain_write, "missing-synchronisation") {
  LocalTensor<int32_t> tensor(TPosition::VECCALC, 0, 8);
  GlobalTensor<int32_t> sum;
  sum.SetGlobalBuffer(Gm<int32_t>(y), 8);
  Duplicate(tensor, 1, 8);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  if (fixed || GetBlockIdx() != 2) SetAtomicAdd<int32_t>();
  DataCopy(sum, tensor, 8);
  DisableDmaAtomic();
}

SCENARIO(__mix__(0, 1), 4, sum_read_before_all_have_added, "missing-synchronisation") {
  LocalTensor<int32_t> tensor(TPosition::VECCALC, 0, 8);
  GlobalTensor<int32_t> sum;
  sum.SetGlobalBuffer(Gm<int32_t>(y), 8);
  Duplicate(tensor, 1, 8);
  SetFlag<HardEvent::V_MTE3>(EVENT_ID0);
  WaitFlag<HardEvent::V_MTE3>(EVENT_ID0);
  SetAtomicAdd<int32_t>();
  DataCopy(sum, tensor, 8);
  DisableDmaAtomic();
  if (fixed) SyncAll();
  LocalTensor<int32_t> total(TPosition::VECCALC, 256, 8);
  if (!fixed) {
    SetFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
    WaitFlag<HardEvent::MTE3_MTE2>(EVENT_ID0);
  }
  DataCopy(total, sum, 8);
}

SCENARIO(__mix__(1, 2), 1, one_vector_core_does_not_signal, "deadlock") {
  if ASCEND_IS_AIV {
    if (fixed || GetSubBlockIdx() == 0) CrossCoreSetFlag<2, PIPE_MTE3>(0);
  }
  if ASCEND_IS_AIC
    CrossCoreWaitFlag<2, PIPE_MTE2>(0);
}

SCENARIO(__mix__(0, 1), 4, one_block_leaves_early, "deadlock") {
  if (!fixed && GetBlockIdx() == 3) return;
  SyncAll();
}

SCENARIO(__mix__(1, 2), 1, each_waits_for_the_other, "deadlock") {
  if ASCEND_IS_AIC {
    if (fixed) CrossCoreSetFlag<2, PIPE_MTE2>(1);
    CrossCoreWaitFlag<2, PIPE_MTE2>(0);
    if (!fixed) CrossCoreSetFlag<2, PIPE_MTE2>(1);
  }
  if ASCEND_IS_AIV {
    CrossCoreWaitFlag<2, PIPE_MTE3>(1);
    CrossCoreSetFlag<2, PIPE_MTE3>(0);
  }
}

SCENARIO(__mix__(1, 2), 1, cross_flag_left_set, "flag-unbalanced") {
  if ASCEND_IS_AIC
    CrossCoreSetFlag<2, PIPE_FIX>(0);
  if ASCEND_IS_AIV {
    if (fixed || GetSubBlockIdx() == 1) CrossCoreWaitFlag<2, PIPE_V>(0);
  }
}

SCENARIO(__mix__(1, 2), 1, cross_flag_counts_too_far, "cross-flag-overflow") {
  const int count = fixed ? 15 : 16;
  if ASCEND_IS_AIC {
    for (int i = 0; i < count; ++i) CrossCoreSetFlag<2, PIPE_FIX>(0);
  }
  if ASCEND_IS_AIV {
    for (int i = 0; i < count; ++i) CrossCoreWaitFlag<2, PIPE_V>(0);
  }
}

SCENARIO(__mix__(1, 2), 1, cross_flag_of_one_core_is_none, "bad-flag") {
  const uint16_t id = fixed ? 10 : 11;
  if ASCEND_IS_AIC
    CrossCoreSetFlag<4, PIPE_FIX>(16 + id);
  if ASCEND_IS_AIV {
    if (GetSubBlockIdx() == 1) CrossCoreWaitFlag<4, PIPE_V>(id);
  }
}

SCENARIO(__mix__(1, 2), 1, cross_flag_waited_for_is_none, "bad-flag") {
  if ASCEND_IS_AIV
    CrossCoreSetFlag<2, PIPE_MTE3>(15);
  if ASCEND_IS_AIC
    CrossCoreWaitFlag<2, PIPE_MTE2>(fixed ? 15 : 16);
}

SCENARIO(__vector__, 4, sync_all_without_mix, "launch-misuse") {
  if (!fixed) SyncAll();
}

SCENARIO(__mix__(0, 1), 1, mode_of_mixed_kernels, "launch-misuse") {
  if (fixed)
    CrossCoreSetFlag<0, PIPE_MTE3>(0);
  else
    CrossCoreSetFlag<2, PIPE_MTE3>(0);
  CrossCoreWaitFlag(0);
}

SCENARIO(__mix__(0, 1), 1, cross_flag_of_the_scalar_pipe, "bad-flag") {
  if (fixed)
    CrossCoreSetFlag<0, PIPE_MTE3>(0);
  else
    CrossCoreSetFlag<0, PIPE_S>(0);
  CrossCoreWaitFlag(0);
}

SCENARIO(__vector__, fixed ? 4 : 5, more_blocks_than_cores, "launch-misuse") {}
SCENARIO(__mix__(1, 2), fixed ? 2 : 3, more_groups_than_cores, "launch-misuse") {}
SCENARIO(__vector__, 1, more_barriers_than_stamps, "launch-too-long") {
  const int count = fixed ? 3 << 20 : 9 << 20;
  for (int i = 0; i < count; ++i) PipeBarrier<PIPE_V>();
}
SCENARIO(__vector__, fixed ? 1 : 0, no_blocks, "launch-misuse") {}
