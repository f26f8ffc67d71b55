#!/bin/bash
# Build and record all committed captures into a folder: make.sh FOLDER [cutrace]
# Needs an NVIDIA GPU, nvcc, and a python3 with torch, triton and cuda.core; `cutrace` on PATH.
# A capture that fails does not keep the others from being made; the exit status says that one did.
set -u
here=$(dirname "$(readlink -f "$0")")
out=${1:?usage: make.sh FOLDER}
mkdir -p "$out"
out=$(readlink -f "$out")
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

# Run by bare names in a folder of their own: a capture holds the command line.
"$here/build.sh" "$build" && cp "$here"/programs/*.py "$build" && cd "$build" || exit 1
options=(--kinds default,sync,event)
capture cpp_streams ./streams
capture torch_step python3 train.py
options=()
capture cuda_graph ./graph
capture processes python3 processes.py
capture triton python3 triton_add.py
capture cuda_core python3 core_saxpy.py
options=(--cuda-graph graph)
capture cuda_graph_whole ./graph
ls -l "$out"
exit $status
