"""Coefficients after the pass over a trunk (csrc/ascend/_mixing.h): memory, tasks, and what they move."""

from __future__ import annotations

import torch

from tandem.backends.ascend.kernels import _rows, _tiles
from tandem.backends.ascend.kernels._hyper import SUMS, Split
from tandem.backends.ascend.kernels._rows import STEP
from tandem.backends.ascend.plan import Device, Plan
from tandem.contract.types import HcMix, HcWeights, QFormat

Tensor = torch.Tensor
FOUR = 4  # rows of a register
LANES = 16  # f32 of a row's coefficients
SHARE = 4  # part of UB that the coefficients get; the rest is that of rows that are normalised beside them
CONSTANTS = 768  # bytes of bases and scales


def rows_of_task(device: Device, split: Split) -> int:
    """Rows that a task mixes: by UB, and so that all cores have some."""
    row = 2 * 4 * (split.chunks * SUMS + 3 * LANES)
    most = (device.ub_bytes // SHARE - CONSTANTS) // row // FOUR * FOUR
    return max(FOUR, min(most, _tiles.up(-(-split.rows // device.vector_cores), FOUR)))


def empty_partial(split: Split, device: torch.device) -> Tensor:
    """Memory for the sums that the chunks of rows leave."""
    return torch.empty((split.chunks, split.rows, SUMS), dtype=torch.float32, device=device)


def numbers(weights: HcWeights) -> tuple[float, float, int]:
    """As an entry takes them that mixes."""
    return weights.norm_eps, weights.hc_eps, weights.iters


def empty_mix(split: Split, device: torch.device) -> HcMix:
    """Coefficients, their numbers anything."""
    shapes = ((split.m,), (split.m,), (split.m, split.m))
    return HcMix(*(torch.empty((split.rows, *shape), dtype=torch.float32, device=device) for shape in shapes))


def plan(device: Device, split: Split) -> list[Plan]:
    """The launch that mixes and does nothing else."""
    return _tiles.plan(device, *_moved(device, split))


def finish_plan(device: Device, split: Split) -> list[Plan]:
    """The launch that mixes, and normalises collapsed rows in place."""
    rows, width = split.rows, split.width
    tasks, read, written, ub = _moved(device, split)
    busy = min(tasks + rows, device.vector_cores, rows)  # blocks that normalise
    x, weight = rows * width * 2, width * 4
    quantised = _rows.quantised_bytes(rows, width, QFormat.MXFP8)
    loaded = rows * _rows.steps(width) * STEP * (2 + 2 + 4)
    encoded = rows * _rows.encode_ub(width, QFormat.MXFP8, 2)
    ub += 3 * x + busy * weight + loaded + quantised + encoded
    return _tiles.plan(device, tasks + rows, read + x + weight, written + x + quantised, ub)


def _moved(device: Device, split: Split) -> tuple[int, int, int, int]:
    """Tasks, bytes read and written, and bytes of UB of the coefficients of all rows."""
    rows, m = split.rows, split.m
    tasks = -(-rows // rows_of_task(device, split))
    read, written = 4 * rows * split.chunks * SUMS, 4 * rows * (2 * m + m * m)
    constants = min(tasks, device.vector_cores) * 4 * (2 * m + m * m + 3)
    registers = _tiles.up(rows, FOUR) * 4 * (split.chunks * SUMS + 3 * LANES) + tasks * (2 * 4 * STEP + 12)
    return tasks, read + constants, written, read + written + constants + registers
