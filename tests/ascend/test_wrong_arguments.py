"""Arrays that kernels of backend 'ascend' do not take."""

from __future__ import annotations

import pytest
from support.wrong_arguments import check

from tandem.backends.ascend.table import implementations
from tandem.contract.backend import Backend
from tandem.contract.plan import Plan


@pytest.mark.parametrize("op", sorted(implementations()))
def test_arrays_that_lie_elsewhere(ascend: Backend, op: str) -> None:
    check(Plan(ascend), op)
