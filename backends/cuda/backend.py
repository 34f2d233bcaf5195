"""NVIDIA SM100 (B200, GB200): the name is registered, the kernels are not part of this version."""

from __future__ import annotations

from tandem.contract.absent import AbsentBackend


class CudaBackend(AbsentBackend):
    """Opening it explains what is missing."""

    name = "cuda"
    _device_file = "/dev/nvidiactl"
    _package = "triton"
    _version_files = {"driver": "/sys/module/nvidia/version"}
    _variables = ("CUDA_VISIBLE_DEVICES",)
    _misnamed = {"CUDA_VISIBLE_DEVICE": "CUDA_VISIBLE_DEVICES", "GPU_VISIBLE_DEVICES": "CUDA_VISIBLE_DEVICES"}


BACKEND = CudaBackend
