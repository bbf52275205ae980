"""The kernels compute the same with the registers of other processors."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fusetk.nn.fused import build

FOLDER = Path(__file__).parent


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the options are those of x86")
@pytest.mark.parametrize("name", sorted(build.EFFECTS))
def test_kernels_compile_without_avx512_and_with_an_old_default_language(name):
    compiler, _ = build._compiler()
    if not compiler:
        pytest.skip("there is no C++ compiler")
    options = ["-std=gnu++98", *build.COMMON, *build.FLAGS[0], "-mno-avx512f", "-fsyntax-only"]
    source = build.FOLDER / f"{name}.cpp"
    result = subprocess.run([*compiler, *options, source], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the options are those of x86")
@pytest.mark.parametrize(
    "options", ["-mno-avx512f", "-mno-avx", "-mno-avx512vnni", "-mno-avx512f -mno-avxvnni"]
)
def test_fewer_instructions(options, tmp_path):
    compiler, _ = build._compiler()
    if not compiler:
        pytest.skip("there is no C++ compiler")
    names = ["packed_attention", "fused_transformer", "convolution_kernels"]
    names += ["decoding_kernels", "product_kernels"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", *(FOLDER / f"test_{n}.py" for n in names)],
        env={
            **os.environ,
            "CXX": f"{shlex.join(compiler)} {options}",
            "XDG_CACHE_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
    assert "there is no C++ compiler" not in result.stdout, "tests are skipped"
    assert list((tmp_path / "fusetk").glob("*.so"))
