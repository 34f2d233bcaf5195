"""What a backend class may define: the surface of `Backend`, checked when the class is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tandem.backends.cpu.backend import CpuBackend
from tandem.contract.backend import Backend
from tandem.contract.surface import is_version
from tandem.errors import ContractError, SurfaceError, TandemError


def faults(**members: Any) -> str:
    """The reason that a class with these members is refused for."""
    with pytest.raises(TypeError) as caught:
        type("Toy", (Backend,), {"__module__": "toys", "__qualname__": "Toy", **members})
    assert isinstance(caught.value, SurfaceError) and isinstance(caught.value, ContractError)
    return caught.value.why


def test_the_error_word_for_word() -> None:
    with pytest.raises(TypeError) as caught:

        class Toy(Backend):
            __module__, __qualname__ = "toys", "Toy"

            def close(self, force: bool) -> None: ...

            def implementaton(self, op: str) -> None: ...

            def frobnicate(self) -> None: ...

    assert str(caught.value) == (
        "class 'Toy' does not fit the surface of contract 1.2. Where: toys.Toy. "
        "Why: 'close' takes (self, force), the surface has (self); "
        "unknown public name 'implementaton' (did you mean 'implementation'?); unknown public name 'frobnicate'. "
        "Fix: take the names and parameters of tandem.contract.backend.Backend; begin your own names with '_'."
    )


def test_private_names_and_instance_attributes_are_free() -> None:
    class Toy(CpuBackend):
        _tiles = 4
        __slots__ = ()

        def __init__(self) -> None:
            super().__init__(False)
            self.seen = 1

        def _helper(self, anything: int, *more: int) -> None: ...

        def __repr__(self) -> str:
            return "toy"

    assert Toy().seen == 1


SURFACE = [name for name in vars(Backend) if not name.startswith("_")]


@pytest.mark.parametrize("name", SURFACE)
def test_every_member_may_be_overridden_as_it_is_and_not_otherwise(name: str) -> None:
    member = vars(Backend)[name]
    assert type("Toy", (Backend,), {name: member})
    assert f"'{name}' is a value of type NoneType" in faults(**{name: None})
    if isinstance(member, property):
        return
    plain = getattr(member, "__func__", member)
    wrap: Callable[..., Any] = classmethod if isinstance(member, classmethod) else lambda f: f
    parameters = ", ".join(inspect.signature(plain).parameters)
    longer: dict[str, Any] = {}
    exec(f"def {name}({parameters}, extra=None): ...", longer)
    assert f"'{name}' takes ({parameters}, extra=None)" in faults(**{name: wrap(longer[name])})
    assert f"'{name}' is a static method" in faults(**{name: staticmethod(plain)})


def test_wrong_forms() -> None:
    assert faults(caps=lambda self: None) == "'caps' is a method, the surface has a property"
    assert faults(probe=lambda cls: None) == "'probe' is a method, the surface has a class method"
    assert "'to_host' takes (self, value), the surface has (self, tensor)" == faults(to_host=lambda self, value: None)
    assert "(self, *args, **kwargs)" in faults(empty=lambda self, *args, **kwargs: None)
    assert "(self, dtype, shape)" in faults(empty=lambda self, dtype, shape: None)
    assert faults(device=lambda self: None) == "'device' is a function, the surface has a value"


def test_what_core_may_leave_out_stays_optional() -> None:
    wanted = "'from_host' takes (self, array, out), the surface has (self, array, out=None)"
    assert faults(from_host=lambda self, array, out: None) == wanted
    assert type("Toy", (Backend,), {"empty": lambda self, shape, dtype=None: None})


def test_a_wrapped_method_shows_the_signature_it_wraps() -> None:
    class Toy(CpuBackend):
        @functools.wraps(CpuBackend.synchronize)
        def synchronize(self, *args: Any) -> None: ...

        @functools.cached_property
        def caps(self) -> Any: ...  # type: ignore[override]

    assert Toy.synchronize is not CpuBackend.synchronize


def test_a_mixin_is_checked_with_the_class_that_brings_it() -> None:
    class Mixin:
        def shutdown(self) -> None: ...

    with pytest.raises(SurfaceError, match="unknown public name 'shutdown'"):

        class Toy(Mixin, CpuBackend): ...


def test_annotations_count() -> None:
    with pytest.raises(SurfaceError, match="unknown public name 'devise' .did you mean 'device'"):

        class Toy(CpuBackend):
            devise: str


@pytest.mark.parametrize("version", ["1.0", 1, (1,), (1, 0, 0), (1, "0"), [1, 0], (1, -1), (True, 0), None])
def test_a_contract_version_is_a_pair_of_integers(version: object) -> None:
    assert not is_version(version)
    assert "'contract' is" in faults(contract=version)


def test_an_empty_name_is_refused() -> None:
    assert faults(name="") == "'name' is '', the surface has a name"


def test_the_error_has_four_parts() -> None:
    with pytest.raises(TandemError) as caught:
        type("Toy", (Backend,), {"extra": 1})
    assert set(caught.value.to_dict()) == {"error", "what", "where", "why", "fix"}
