#!/bin/sh
# Makes the cubins of this folder from their sources, with NVRTC of CUDA 11.8 for sm_80, and with nvcc and nvlink of
# CUDA 13.0 for the others. Usage: make.sh LIBNVRTC.so.11.2
set -eu
cd "$(dirname "$0")"
python3 - "$1" <<'PYTHON'
import ctypes
import sys
from pathlib import Path

nvrtc = ctypes.CDLL(sys.argv[1])
program = ctypes.c_void_p()
size = ctypes.c_size_t()
option = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_80")
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), Path("kernels.cu").read_bytes(), b"kernels.cu", 0, None, None) == 0
assert nvrtc.nvrtcCompileProgram(program, 1, option) == 0
assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
cubin = ctypes.create_string_buffer(size.value)
assert nvrtc.nvrtcGetCUBIN(program, cubin) == 0
Path("sm_80.cubin").write_bytes(cubin.raw)
PYTHON
for source in library callers; do nvcc -arch=sm_90 -rdc=true -cubin $source.cu -o $source.o; done
nvlink -arch=sm_90 library.o callers.o -o sm_90.cubin
nvlink -arch=sm_90 callers.o library.o -o sm_90_reordered.cubin
nvcc -arch=sm_100 -cubin kernels.cu -o sm_100.cubin
nvcc -arch=sm_90 -cubin variables.cu -o variables.cubin
rm library.o callers.o
