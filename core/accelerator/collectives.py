"""Collectives between the ranks of one model, over torch.distributed: the vendor's library on devices, else gloo.

The contract has no collectives yet (docs/CONTRACT.md, `L2+ep`), so nothing but backends and tests may use these.  All
are queued in the order of the device's queue and have fixed shapes, so that they can be captured.  Every rank must
call the same collectives in the same order; each keeps a log of its calls, and `check_order` compares the logs, which
finds the call where two ranks parted instead of a hang later.  Run over gloo by tests; never run on devices.
"""

from __future__ import annotations

import hashlib
from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tandem.accelerator.runtime import HOST_TRANSPORT
from tandem.errors import CapacityError, ContractError

Tensor = torch.Tensor
KEPT = 1024  # calls of the log that are kept in words; all of them count in its hash


class Collectives:
    """One rank's view of a group of ranks.

    Args:
        rank, world: this rank and the number of ranks.
        store: a ``torch.distributed`` store, where ranks meet.
        transport: what torch.distributed calls the library, `Runtime.transport`.
        device: of this rank's arrays.
        patience: seconds after which a call that other ranks do not join fails.
    """

    def __init__(
        self, rank: int, world: int, store: Any, transport: str, device: torch.device, patience: float = 600.0
    ) -> None:
        self.rank, self.world, self.device = rank, world, device
        place = None if transport == HOST_TRANSPORT else device
        dist.init_process_group(
            transport,
            store=store,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=patience),
            device_id=place,
        )
        self._group: Any = dist.group.WORLD
        self._hash, self._calls = hashlib.sha256(), 0
        self._log: deque[str] = deque(maxlen=KEPT)

    def close(self) -> None:
        """Leave the group; nothing else may be called afterwards."""
        dist.destroy_process_group(self._group)
        self._group = None  # threads of a group that outlives the interpreter would end the process

    @property
    def log(self) -> list[str]:
        """The latest calls, oldest first."""
        return list(self._log)

    def all_reduce(self, x: Tensor) -> Tensor:
        """x becomes the sum over ranks, in place."""
        self._note("all_reduce", x)
        dist.all_reduce(x, group=self._group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """[n, ...] of each rank -> [world * n, ...], by rank."""
        self._note("all_gather", x)
        found = x.new_empty((self.world * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(found, x.contiguous(), group=self._group)
        return found

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """[world * n, ...] -> [n, ...], this rank's part of the sum over ranks."""
        self._note("reduce_scatter", x)
        found = x.new_empty((self._share("reduce_scatter", x), *x.shape[1:]))
        dist.reduce_scatter_tensor(found, x.contiguous(), group=self._group)
        return found

    def all_to_all(self, x: Tensor) -> Tensor:
        """[world * n, ...]: part r goes to rank r -> [world * n, ...], parts by the rank they come from."""
        self._note("all_to_all", x)
        self._share("all_to_all", x)
        found = torch.empty_like(x)
        dist.all_to_all_single(found, x.contiguous(), group=self._group)
        return found

    def broadcast(self, x: Tensor, source: int) -> Tensor:
        """x becomes that of rank ``source``, in place."""
        self._note(f"broadcast from {source}", x)
        dist.broadcast(x, source, group=self._group)
        return x

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._note("barrier", None)
        dist.barrier(group=self._group)

    def check_order(self) -> None:
        """Compare the logs of all ranks.  Every rank must call it at the same place of its program.

        Raises:
            ContractError: two ranks made different calls, on every rank.
        """
        mine = (self._calls, self._hash.hexdigest(), self.log)
        logs: list[tuple[int, str, list[str]]] = [mine] * self.world
        dist.all_gather_object(logs, mine, group=self._group)
        for rank, (_, digest, log) in enumerate(logs):
            if digest != logs[0][1]:
                raise ContractError(
                    "ranks made different collective calls",
                    where=f"ranks 0 and {rank} of {self.world}",
                    why=_parted(logs[0], (logs[rank][0], digest, log), rank),
                    fix="make every rank run the same steps; a choice that depends on one rank's data is the cause",
                )

    def _note(self, name: str, x: Tensor | None) -> None:
        told = name if x is None else f"{name} {str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
        self._log.append(told)
        self._calls += 1
        self._hash.update(f"{told}\n".encode())

    def _share(self, name: str, x: Tensor) -> int:
        if x.shape[0] % self.world:
            raise CapacityError(
                f"{name} got rows that cannot be shared out",
                where=f"rank {self.rank} of {self.world}, shape {tuple(x.shape)}",
                why=f"{x.shape[0]} is no multiple of {self.world}",
                fix="fill the rows up to a multiple of the number of ranks",
            )
        return x.shape[0] // self.world


def _parted(one: tuple[int, str, list[str]], two: tuple[int, str, list[str]], rank: int) -> str:
    """The first call that differs, of those that are kept."""
    first = max(one[0] - len(one[2]), two[0] - len(two[2]))
    logs = [log[first - (count - len(log)) :] for count, _, log in (one, two)]
    for place, (a, b) in enumerate(zip(*logs, strict=False), start=first):
        if a != b:
            return f"call {place}: rank 0 made '{a}', rank {rank} '{b}'"
    return f"rank 0 made {one[0]} calls, rank {rank} {two[0]}; those of which both logs tell are equal"
