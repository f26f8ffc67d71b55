#!/bin/bash
# Build and record all committed captures into a folder: make.sh FOLDER [cutrace]
# Needs an NVIDIA GPU, nvcc, and a python3 with torch, triton and cuda.core; `cutrace` on PATH.
# A capture that fails does not keep the others from being made; the exit status says that one did.
set -u
here=$(dirname "$(readlink -f "$0")")
out=${1:?usage: make.sh FOLDER}
mkdir -p "$out"
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
status=0

capture() {
  local name=$1
  shift
  echo "== $name: $*"
  timeout 120 cutrace record -o "$out/$name.bin" "${options[@]}" -- "$@" || { echo "!! $name failed ($?)"; status=1; return; }
  timeout 60 cutrace info "$out/$name.bin" || status=1
}

"$here/build.sh" "$build" || exit 1
options=()
capture cpp_streams "$build/streams"
capture cuda_graph "$build/graph"
capture torch_step python3 "$here/programs/train.py"
capture processes python3 "$here/programs/processes.py"
capture triton python3 "$here/programs/triton_add.py"
capture cuda_core python3 "$here/programs/core_saxpy.py"
options=(--cuda-graph graph)
capture cuda_graph_whole "$build/graph"
ls -l "$out"
exit $status
