"""The islands backend: devices in host memory that the host cannot read, with layouts of their own.

It shows what a device that is not torch's own must bring.  Ops run as composites but for those that read or write a
private layout; its arithmetic is that of the composites.

Options: ``fault`` and ``seed``, see `tandem_islands.faults`; where they are not given, the environment variables
``ISLANDS_FAULT`` and ``ISLANDS_SEED``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from tandem.contract.backend import Array, Backend
from tandem.contract.capabilities import Capabilities, MemoryInfo, OpCap, Probe
from tandem.contract.devices import check_index
from tandem.contract.opspec import OpFunction
from tandem.contract.types import CanonicalWeight, KVCache, KVLayout, PackedWeight, QFormat, QTensor, WeightKind
from tandem.errors import ConfigError
from tandem_islands import layouts
from tandem_islands.faults import Faults
from tandem_islands.space import DEVICE, Copy, Space, each

CONTRACT = (1, 2)  # (major, minor) of the contract this was written against
ISLANDS = 2


class IslandsBackend(Backend):
    """One island; see the module."""

    name = "islands"
    contract = CONTRACT

    def __init__(self, index: int, faults: Faults) -> None:
        self.device = DEVICE
        self._space = Space(f"island {index}", faults)
        held = frozenset({layouts.PAGES})
        self._caps = Capabilities(
            contract=CONTRACT,
            formats=frozenset(fmt.value for fmt in QFormat),
            ops={"quantize": OpCap("fused")} | {op: OpCap("fused", {"layout": held}) for op in ("kv_store", "kv_load")},
            batch_invariant=True,
            graphs=False,
            notes="composites in a memory space of their own",
        )

    @classmethod
    def probe(cls) -> Probe:
        """Islands are always there; they are taken only by name."""
        return Probe(True, f"{ISLANDS} islands in host memory", {"torch": torch.__version__}, accelerator=False)

    @classmethod
    def open(cls, device_id: int, options: Mapping[str, Any]) -> IslandsBackend:
        """Open an island; two opened at the same index share nothing."""
        check_index(cls.name, device_id, ISLANDS, "there are that many")
        if unknown := sorted(set(options) - {"fault", "seed"}):
            raise ConfigError(
                f"unknown backend option {', '.join(unknown)}",
                where=f"backend '{cls.name}'",
                why="it takes the options 'fault' and 'seed'",
                fix="remove the option",
            )
        fault = options.get("fault", os.environ.get("ISLANDS_FAULT", ""))
        seed = options.get("seed", os.environ.get("ISLANDS_SEED", 0))
        return cls(device_id, Faults(str(fault), int(seed)))

    def close(self) -> None:
        """Give the memory up; handles of it are dead."""
        self._space.closed = True

    @property
    def caps(self) -> Capabilities:
        return self._caps

    def fingerprint(self) -> dict[str, str]:
        return {"backend": self.name, "torch": torch.__version__, "threads": str(torch.get_num_threads())}

    # -- memory ------------------------------------------------------------------------------------------------
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self._space.hold(torch.empty(shape, dtype=dtype))

    def from_host(self, array: Array, out: torch.Tensor | None = None) -> torch.Tensor:
        memory = torch.from_numpy(np.array(array, order="C"))  # a copy: the source is the caller's again
        if out is None:
            return self._space.hold(memory)
        target = out[: memory.shape[0]] if memory.dim() else out
        self._space.memory(target, "from_host").copy_(memory)
        return target

    def to_host(self, tensor: torch.Tensor) -> Copy:
        return self._space.copy_out(tensor)

    def memory(self) -> MemoryInfo:
        return MemoryInfo(0, 0)

    def synchronize(self) -> None:
        self._space.wait()

    # -- weights and quantised activations ---------------------------------------------------------------------
    def pack_weight(self, kind: WeightKind, weight: CanonicalWeight, shape: tuple[int, ...]) -> PackedWeight:
        layout, payload = layouts.pack(kind, weight)
        size = sum(part.nbytes for part in payload[:2] if part is not None)
        return PackedWeight(kind, weight.fmt, shape, layout, each(payload, self._space.hold), size)

    def unpack_weight(self, weight: PackedWeight) -> CanonicalWeight:
        unpacked: CanonicalWeight = self._space.run("unpack_weight", layouts.unpack, weight)
        return unpacked

    def to_canonical(self, q: QTensor) -> QTensor:
        plain: QTensor = self._space.run("to_canonical", layouts.to_canonical, q)
        return plain

    def from_canonical(self, q: QTensor) -> QTensor:
        own: QTensor = self._space.run("from_canonical", layouts.to_blocks, q)
        return own

    # -- caches ------------------------------------------------------------------------------------------------
    def kv_alloc(self, layout: KVLayout, num_blocks: int) -> KVCache:
        memory = self.empty(layouts.page_shape(layout, num_blocks), torch.uint8)
        return KVCache(layout, num_blocks, memory, layouts.PAGES)

    def kv_export(self, cache: KVCache, blocks: Array) -> Array:
        read = self._space.run("kv_export", layouts.read_blocks, cache, self._index(blocks))
        return self.to_host(read).result()

    def kv_import(self, cache: KVCache, blocks: Array, data: Array) -> None:
        self._space.run("kv_import", layouts.write_blocks, cache, self._index(blocks), self.from_host(data))

    def kv_copy(self, cache: KVCache, source: Array, target: Array) -> None:
        read = self._space.run("kv_copy", layouts.read_blocks, cache, self._index(source))
        self._space.run("kv_copy", layouts.write_blocks, cache, self._index(target), read)

    def _index(self, blocks: Array) -> torch.Tensor:
        return self.from_host(blocks.astype(np.int64))

    # -- ops ---------------------------------------------------------------------------------------------------
    def implementation(self, op: str) -> OpFunction | None:
        return layouts.OPS.get(op)

    def wrap_op(self, op: str, function: OpFunction) -> OpFunction:
        """Every op, and every part of a composite, runs inside."""

        def inside(*args: Any, **kwargs: Any) -> Any:
            return self._space.run(op, function, *args, **kwargs)

        return inside
