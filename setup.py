"""Package layout and the native build; everything else stands in pyproject.toml.

The directories core/ and backends/ become the packages `tandem` and `tandem.backends`.  The CPU
kernels in csrc/ are compiled into one shared library inside `tandem.backends.cpu`, called through a
C ABI, so one wheel serves every Python version.  Without a C++ compiler, or with TANDEM_NO_NATIVE=1,
the build succeeds without the library and leaves a file that says why.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).parent
LIBRARY = "libtandem_cpu.so"
WHY_ABSENT = "libtandem_cpu.absent.txt"
ROOTS = {"tandem": "core", "tandem.backends": "backends"}
sys.path.insert(0, str(ROOT / "csrc"))

from build_cpu import compile_library, find_compiler  # noqa: E402


def compile_native(target: Path) -> str:
    """Compile csrc/cpu into ``target``; returns why that was not possible, or an empty string."""
    if os.environ.get("TANDEM_NO_NATIVE", "0") not in ("", "0"):
        return "TANDEM_NO_NATIVE was set at build time"
    compiler = find_compiler()
    if compiler is None:
        return "no C++ compiler (CXX, c++, g++, clang++) was found at build time"
    message = compile_library(target, compiler, extra=shlex.split(os.environ.get("CXXFLAGS", "")))
    if not message:
        return ""
    print(message)
    errors = [line for line in message.splitlines() if "error" in line] or ["no message"]
    return f"the C++ compiler {compiler} failed at build time: {errors[0]}"


class BuildNative(Command):
    """Compile the CPU kernels; a sub-command of `build`."""

    description = "compile the native CPU kernels"
    user_options = [("inplace", "i", "put the library into the source tree")]
    boolean_options = ["inplace"]
    editable_mode = False

    def initialize_options(self) -> None:
        self.inplace = False
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def _folder(self) -> Path:
        if self.inplace or self.editable_mode:
            return ROOT / "backends" / "cpu"
        return Path(str(self.build_lib)) / "tandem" / "backends" / "cpu"

    def run(self) -> None:
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        reason = compile_native(folder / LIBRARY)
        if reason:
            (folder / LIBRARY).unlink(missing_ok=True)
            (folder / WHY_ABSENT).write_text(reason + "\n", encoding="utf-8")
            print(f"tandem: installing WITHOUT native kernels (plain torch only): {reason}")
        else:
            (folder / WHY_ABSENT).unlink(missing_ok=True)
            print(f"tandem: native kernels built: {folder / LIBRARY}")

    def get_source_files(self) -> list[str]:
        return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*") if p.is_file())

    def get_outputs(self) -> list[str]:
        return [str(p) for name in (LIBRARY, WHY_ABSENT) if (p := self._folder() / name).exists()]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class PlatformDistribution(Distribution):
    """Installs into the platform's library folder, where shared libraries belong."""

    def has_ext_modules(self) -> bool:
        return True


class Build(build):
    """`build` with the native step at its end."""

    sub_commands = [*build.sub_commands, ("build_native", None)]


class BdistWheel(bdist_wheel):
    """Wheels that hold the library fit one platform but every Python; others fit everything."""

    def get_tag(self) -> tuple[str, str, str]:
        outputs = self.get_finalized_command("build_native").get_outputs()
        native = any(path.endswith(LIBRARY) for path in outputs)
        return "py3", "none", super().get_tag()[2] if native else "any"


def packages() -> list[str]:
    """Every package below the two roots, by import name."""
    return [
        name
        for package, folder in ROOTS.items()
        for name in (package, *(f"{package}.{sub}" for sub in find_packages(str(ROOT / folder))))
    ]


setup(
    packages=packages(),
    package_dir=ROOTS,
    package_data={"": ["versions.toml", "capabilities.toml", "floors.json"], "tandem": ["py.typed", "assets/**/*"]},
    include_package_data=False,
    distclass=PlatformDistribution,
    cmdclass={"build": Build, "build_native": BuildNative, "bdist_wheel": BdistWheel},
)
