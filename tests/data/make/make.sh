#!/bin/bash
# Build and record all committed captures into a folder: make.sh FOLDER [cutrace]. Needs an NVIDIA GPU, nvcc, a python3
# with torch, triton and cuda.core, and `cutrace` on PATH. ranks and groups need two GPUs. After a failed capture the
# others are still made, and the exit status is not 0.
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

# The programs are run by their bare names, because a capture contains the command line.
"$here/build.sh" "$build" && cp "$here"/programs/*.py "$build" && cd "$build" || exit 1
options=(--kinds default,sync,event)
capture cpp_streams ./streams
capture torch_step python3 train.py
options=()
capture cuda_graph ./graph
capture processes python3 processes.py
capture triton python3 triton_add.py
capture cuda_core python3 core_saxpy.py
capture many_streams python3 many_streams.py
export XLA_PYTHON_CLIENT_PREALLOCATE=false
capture whole_jax python3 jax_step.py
# The slice leaves out the rest, which is mostly compilation.
cutrace slice "$out/whole_jax.bin" --nvtx '/^XlaModule:#hlo_module=jit_(train_step|norm|matmul)/' -o "$out/jax.bin" || status=1
rm -f "$out/whole_jax.bin"
options=(--sample metrics --interval 200us)
capture whole_sampled python3 train.py
# The slice leaves out the rest, mostly counters from the start and the end of the program.
cutrace slice "$out/whole_sampled.bin" --nvtx "step 1" -o "$out/sampled.bin" || status=1
rm -f "$out/whole_sampled.bin"
options=(--sample pc)
capture pc_sampled ./graph
options=(--annotate torch.nn.Module.__call__)
capture modules python3 modules.py
options=(--cuda-graph graph)
capture cuda_graph_whole ./graph
options=()
echo "== profiled"
timeout 120 cutrace profile -o "$out/profiled.bin" --count 12 -- python3 train.py || status=1
echo "== JAX's own trace"
timeout 120 python3 jax_step.py "$build/jax" || status=1
cp "$build"/jax/plugins/profile/*/*.trace.json.gz "$out/jax.trace.json.gz" || status=1
if python3 -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2)'; then
  # The slice has two of the four steps. It leaves out the rest, which is mostly the setup of NCCL.
  capture all_ranks python3 ranks.py
  cutrace slice "$out/all_ranks.bin" --nvtx "step 2" --nvtx "step 3" -o "$out/ranks.bin" || status=1
  rm -f "$out/all_ranks.bin"
  capture all_groups torchrun --nproc-per-node 2 groups.py
  cutrace slice "$out/all_groups.bin" --nvtx "ddp 4" --nvtx "ddp 5" -o "$out/groups.bin" || status=1
  rm -f "$out/all_groups.bin"
else
  echo "!! ranks and groups left out: they need two GPUs"
fi
ls -l "$out"
exit $status
