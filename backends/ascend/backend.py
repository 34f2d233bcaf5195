"""Huawei Ascend 950: the name is registered, the kernels are not part of this version."""

from __future__ import annotations

from tandem.contract.absent import AbsentBackend


class AscendBackend(AbsentBackend):
    """Opening it explains what is missing."""

    name = "ascend"
    _device_file = "/dev/davinci_manager"
    _package = "torch-npu"
    _version_files = {
        "CANN": "$ASCEND_TOOLKIT_HOME/version.cfg",
        "driver": "/usr/local/Ascend/driver/version.info",
    }
    _variables = ("ASCEND_TOOLKIT_HOME", "ASCEND_RT_VISIBLE_DEVICES")
    _misnamed = {"ASCEND_VISIBLE_DEVICES": "ASCEND_RT_VISIBLE_DEVICES"}


BACKEND = AscendBackend
