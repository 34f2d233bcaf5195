"""Errors a user can meet.

Every error answers four questions: what happened, where (op, layer, shape, tensor, field),
why, and what to do about it.  ``str(error)`` joins them into one readable paragraph;
``error.to_dict()`` gives the parts for ``--json`` output.
"""

from __future__ import annotations


class TandemError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what happened, one sentence without the trailing full stop.
        where: the op, layer, tensor, file or field concerned.
        why: the cause, with the offending and the expected values.
        fix: what the reader can do next.
    """

    def __init__(self, what: str, *, where: str, why: str, fix: str) -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(f"{what}. Where: {where}. Why: {why}. Fix: {fix}{'' if fix.endswith('?') else '.'}")

    def to_dict(self) -> dict[str, str]:
        """The four parts and the error's class name, for machine-readable output."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "fix": self.fix,
        }


class ConfigError(TandemError):
    """A model configuration or an engine option is missing, of a wrong type or unsupported."""


class CheckpointError(TandemError):
    """A checkpoint file is missing, damaged or does not hold what the model needs."""


class TokenizerError(TandemError):
    """The tokenizer is missing or does not fit the model."""


class RequestError(TandemError):
    """A prompt or sampling parameter of one request is not usable; other requests go on."""


class BackendNotFound(TandemError):
    """The selected backend name is not registered."""


class BackendLoadError(TandemError):
    """The selected backend is registered but cannot be opened on this machine."""


class VersionError(TandemError):
    """Installed versions do not work together."""


class DeviceIndexError(TandemError):
    """The selected device index does not exist."""


class OpUnsupported(TandemError):
    """A backend has no implementation of an op for this dtype, format or shape."""


class LayoutError(TandemError):
    """A tensor, scale or cache has a layout that the receiving op does not read."""


class ContractError(TandemError):
    """A backend and the core disagree about the contract."""


class SurfaceError(ContractError, TypeError):
    """A backend class defines what the contract's surface does not have."""


class TraceError(TandemError):
    """A parity trace, or a file of exchanged cache pages, is damaged, out of bounds or of another contract."""


class KernelError(TandemError):
    """A device refused a kernel, or an emulated device found that one breaks a rule of the device."""


class CapacityError(TandemError):
    """A pool (blocks, slots, memory) is too small for what was asked."""


class ParityFail(TandemError):
    """An op of one backend is outside its class, or a decision differs beyond noise, in a comparison of two traces."""
