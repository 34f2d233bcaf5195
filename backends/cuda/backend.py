"""NVIDIA SM100 (B200, GB200): the name is registered, the kernels are not part of this version."""

from __future__ import annotations

from tandem.contract.absent import AbsentBackend


class CudaBackend(AbsentBackend):
    """Opening it explains what is missing."""

    name = "cuda"
    _device_file = "/dev/nvidiactl"
    _package = "triton"


BACKEND = CudaBackend
