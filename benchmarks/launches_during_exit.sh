#!/bin/bash
# Count the crashes of a program with threads that launch during its exit, without a tool and under each collector:
#   launches_during_exit.sh RUNS NAME=LIBRARY...
#
# Needs a GPU, nvcc and g++. Prints the number of runs by exit status (139: SIGSEGV). If there are core files (ulimit -c
# and /proc/sys/kernel/core_pattern), cuda-gdb shows the place of a crash. Programs crash in cudaLaunchKernel() because
# the main thread frees the runtime's tables.
set -eu
runs=${1:?usage: launches_during_exit.sh RUNS NAME=LIBRARY...}
shift
root=$(dirname "$(dirname "$(readlink -f "$0")")")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
includes=$(python3 "$root/cmake/find_headers.py" | tr ';' '\n' | sed 's/^/-isystem /' | tr '\n' ' ')
nvcc -O2 -std=c++17 -arch=native -I "$root/tests/data/make/programs" -o "$folder/leaving" "$root/tests/gpu/programs/leaving.cu"
# shellcheck disable=SC2086
g++ -std=c++20 -O2 -fPIC -shared $includes -o "$folder/null.so" "$root/benchmarks/native/null_collector.cpp" -ldl -lpthread
one_run() {
  cd "$folder"
  CUDA_INJECTION64_PATH=$1 CUTRACE_OPTIONS="directory=$folder" timeout 60 ./leaving threads > /dev/null 2>&1
  echo "status $?"
}
export -f one_run
export folder
for tool in none= null="$folder/null.so" "$@"; do
  echo "${tool%%=*}: $(seq "$runs" | xargs -P 12 -I{} bash -c "one_run '${tool#*=}'" 2> /dev/null | sort | uniq -c | tr -s '\n ' ' ')"
  rm -f "$folder"/*.bin
done
