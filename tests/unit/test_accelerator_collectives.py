"""Collectives between two processes on the host, over gloo."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

RANK = """
import sys
import torch
import torch.distributed as dist
from tandem.accelerator.collectives import Collectives
from tandem.errors import CapacityError, ContractError

rank = int(sys.argv[1])
group = Collectives(rank, 2, dist.FileStore(sys.argv[2], 2), "gloo", torch.device("cpu"), patience=60)
mine = torch.arange(6.0).view(2, 3) + 10 * rank
both = [torch.arange(6.0).view(2, 3) + 10 * r for r in range(2)]
assert torch.equal(group.all_reduce(mine.clone()), both[0] + both[1])
assert torch.equal(group.all_gather(mine), torch.cat(both))
assert torch.equal(group.reduce_scatter(mine), (both[0] + both[1])[rank : rank + 1])
assert torch.equal(group.all_to_all(mine), torch.stack([b[rank] for b in both]))
assert torch.equal(group.broadcast(mine.clone(), 1), both[1])
codes = torch.full((4, 2), 7 + rank, dtype=torch.uint8)
assert torch.equal(group.all_to_all(codes), torch.tensor([[7, 7], [7, 7], [8, 8], [8, 8]], dtype=torch.uint8))
group.barrier()
assert group.log[0] == "all_reduce float32 [2, 3]" and group.log[-1] == "barrier"
group.check_order()
try:
    group.all_to_all(torch.zeros(3))
except CapacityError as error:
    assert "no multiple of 2" in str(error)
"""


def run(tmp_path: Path, repo_root: Path, rest: str) -> list[str]:
    code = textwrap.dedent(RANK) + textwrap.dedent(rest) + "\ngroup.close()\nprint('done')\n"
    command = [sys.executable, "-c", code]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=repo_root,
        )
        for rank in range(2)
    ]  # fmt: skip
    return [rank.communicate(timeout=240)[0] for rank in ranks]


def test_two_ranks(tmp_path: Path, repo_root: Path) -> None:
    for told in run(tmp_path, repo_root, ""):
        assert told.endswith("done\n"), told


@pytest.mark.slow
def test_ranks_that_part_are_told_where(tmp_path: Path, repo_root: Path) -> None:
    rest = """
    group.all_reduce(torch.zeros(4 + rank)[:4])
    group._note("all_gather", torch.zeros(rank + 1))
    try:
        group.check_order()
        raise SystemExit("not noticed")
    except ContractError as error:
        assert "call 9: rank 0 made 'all_gather float32 [1]', rank 1 'all_gather float32 [2]'" in str(error), error
    """
    for told in run(tmp_path, repo_root, rest):
        assert told.endswith("done\n"), told
