#!/usr/bin/env python3
"""Compiles the kernels of crates/gpu as CUDA C, without a GPU, and checks that their sums are those defined.

Every kernel must have fused multiply-adds (`fma.rn.f32`), no operation that flushes subnormal numbers (`.ftz`), and
none that a later compiler may contract (`mul.f32` without `.rn`). Needs NVRTC: pip install nvidia-cuda-nvrtc-cu12, or
the path of libnvrtc.so.12 in NVRTC. Writes the PTX to a directory that is named.
"""

import ctypes
import importlib.util
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crates/gpu/src/kernels"
FILES = ["cuda.h", "numbers.c", "plain.c", "packed.c", "coded.c"]
TARGETS = ["compute_75", "compute_90"]
OPTIONS = ["--fmad=false", "--ftz=false"]


def library():
    """The path of NVRTC, or None."""
    if "NVRTC" in os.environ:
        return os.environ["NVRTC"]
    try:
        spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    except ModuleNotFoundError:
        return None
    for folder in spec.submodule_search_locations if spec else []:
        for path in Path(folder).glob("lib/libnvrtc.so.*"):
            return str(path)
    return None


class Nvrtc:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)

    def ptx(self, source, options):
        program = ctypes.c_void_p()
        arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        created = self.lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        assert created == 0, f"nvrtcCreateProgram returned {created}"
        if self.lib.nvrtcCompileProgram(program, len(options), arguments) != 0:
            sys.exit("ptx: the kernels do not compile:\n" + self.text(program, "ProgramLog"))
        return self.text(program, "PTX")

    def text(self, program, what):
        size = ctypes.c_size_t()
        getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(self.lib, f"nvrtcGet{what}")(program, text)
        return text.value.decode()


def kernels(ptx):
    """The text of each kernel by name."""
    parts = re.split(r"\.entry\s+(\w+)", ptx)
    return dict(zip(parts[1::2], parts[2::2]))


def main():
    path = library()
    if path is None:
        print("ptx: skipped: no NVRTC (pip install nvidia-cuda-nvrtc-cu12)")
        return
    if "--missing" in sys.argv:
        return
    source = (ROOT / "crates/gpu/src/kernel.rs").read_text()
    names = set(re.findall(r'^    \w+ = "(\w+)",$', source, re.M))
    rows = re.search(r"ROWS: u32 = (\d+)", source).group(1)
    text = f"#define ROWS {rows}\n" + "".join((SOURCE / name).read_text() for name in FILES)
    wrong = 0
    for target in TARGETS:
        ptx = Nvrtc(path).ptx(text, [f"--gpu-architecture={target}", *OPTIONS])
        if len(sys.argv) > 1:
            (Path(sys.argv[1]) / f"{target}.ptx").write_text(ptx)
        found = kernels(ptx)
        if set(found) != names:
            sys.exit(f"ptx: kernels {sorted(set(found) ^ names)} are in one of the source and the PTX")
        fused = 0
        for name, body in found.items():
            of = len(re.findall(r"\bfma\.rn\.f32\b", body))
            loose = re.findall(r"\b(?:mul|add|sub|fma|mad)\.(?:ftz\.)?f32\b|\S*\.ftz\S*|\S*\.approx\S*", body)
            if of == 0 or loose:
                wrong += 1
                print(f"ptx: {target} {name}: {of} fma.rn.f32, and {sorted(set(loose))}")
            fused += of
        print(f"ptx: {target}: {len(found)} kernels, {fused} fma.rn.f32, no .ftz and nothing to contract")
    if wrong:
        sys.exit(1)


main()
