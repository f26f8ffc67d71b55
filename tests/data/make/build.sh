#!/bin/sh
# Build the CUDA programs of the captures into a folder: build.sh FOLDER. CUDA_ARCH is the GPU architecture to compile
# for (default: that of the GPU here).
set -eu
here=$(dirname "$(readlink -f "$0")")
out=${1:?usage: build.sh FOLDER}
mkdir -p "$out"
for name in streams graph endings; do
  nvcc -O2 -std=c++17 -arch="${CUDA_ARCH:-native}" -o "$out/$name" "$here/programs/$name.cu"
done
