#!/bin/bash
# All tests and benchmarks that need a GPU, in one command:
#   gpu_campaign.sh OUT_DIR [captures|tests|plugin|stability|sensitivity|overhead|soak|endings|all]...
#
# Installs nothing: `cutrace` must be on PATH and importable, and python3 must have torch, triton, cuda.core and pytest.
# Each part has a separate time limit, so that a hang in one part does not lose the other parts. TOTAL (seconds, default
# 570) limits all parts together; the overhead benchmark runs as many rounds as the remaining time allows. OVERHEAD
# holds more options of overhead.py, e.g. OVERHEAD=--quick. The parts stability and sensitivity need CUPY_TESTS, a
# folder with CuPy's tests of the installed version; `all` leaves them out without it. GOLDEN is the folder of CuPy's
# golden files (default: OUT_DIR/golden). If it has none, stability writes them and packs them into golden-cupy.tar.gz,
# else it only checks them. OUT_DIR gets captures.tar.gz, captures.log, tests.log, plugin.json,
# overhead.{json,md,log,txt}, nvtx.json, soak.json, soak.txt, endings.json, endings.txt,
# stability.{json,md,log}, sensitivity.{json,md,log}, golden-cupy.tar.gz.
set -u
root=$(dirname "$(dirname "$(readlink -f "$0")")")
out=${1:?usage: gpu_campaign.sh OUT_DIR [captures|tests|plugin|stability|sensitivity|overhead|soak|endings|all]...}
shift
mkdir -p "$out"
out=$(readlink -f "$out")
end=$((SECONDS + ${TOTAL:-570}))
export PYTHONUNBUFFERED=1
cd "$root" || exit 1
failed=""

left() { echo $((end - SECONDS)); }
at_most() { local l; l=$(left); echo $(($1 < l ? $1 : l > 1 ? l : 1)); }

captures() {
  local folder
  folder=$(mktemp -d)
  timeout -k 10 "$(at_most 240)" tests/data/make/make.sh "$folder" > "$out/captures.log" 2>&1 || failed+=" captures"
  tar -C "$folder" -czf "$out/captures.tar.gz" .
  rm -rf "$folder"
  cat "$out/captures.log"
}

tests() {
  local together=""
  # One worker runs a module, and makes its fixtures once.
  python3 -c 'import xdist' 2> /dev/null && together="-n 6 --dist loadfile"
  local options=(-q -rfEs -p no:cacheprovider)
  {
    # shellcheck disable=SC2086
    timeout -s INT -k 10 "$(at_most 400)" python3 -m pytest tests/gpu -m "gpu and not counters" "${options[@]}" $together \
      --ignore tests/gpu/test_plugin.py --ignore tests/gpu/test_agreement.py --ignore tests/gpu/test_triggers.py || failed+=" tests"
    # Run alone on the GPU, because the counted bytes of DRAM include other programs.
    timeout -s INT -k 10 "$(at_most 400)" python3 -m pytest tests/gpu -m "gpu and counters" "${options[@]}" || failed+=" counters"
    # Runs separately, because it starts several workers.
    timeout -k 10 "$(at_most 200)" python3 -m pytest tests/gpu/test_plugin.py -m gpu -q -rfEs -p no:cacheprovider \
      || failed+=" plugin-tests"
    # Run alone on the GPU, because they compare durations.
    timeout -k 10 "$(at_most 180)" python3 -m pytest tests/gpu/test_agreement.py tests/gpu/test_triggers.py -m gpu -q -rfEs -p no:cacheprovider \
      || failed+=" agreement"
  } > "$out/tests.log" 2>&1
  tail -n 60 "$out/tests.log"
}

plugin() {
  timeout -k 10 "$(at_most 120)" python3 benchmarks/pytest_cost.py --parts unused,launches > "$out/plugin.json" || failed+=" plugin"
  cat "$out/plugin.json"
}

golden_stability() { # NAME OPTIONS...
  local name=$1
  shift
  timeout -k 10 "$(at_most 560)" python3 benchmarks/golden_stability.py --tests "${CUPY_TESTS:?is not set}" \
    --limit-seconds "$(($(left) - 10))" --out "$out/$name.json" "$@" > "$out/$name.md" 2> "$out/$name.log" || failed+=" $name"
  cat "$out/$name.log" "$out/$name.md"
}

stability() {
  local golden=${GOLDEN:-$out/golden}
  if [ -n "$(find "$golden" -name '*.toml' -print -quit 2> /dev/null)" ]; then
    golden_stability stability --stages plain,check --golden "$golden"
  else
    golden_stability stability --stages plain,update,check --golden "$golden"
    tar -C "$golden" -czf "$out/golden-cupy.tar.gz" .
  fi
}

sensitivity() {
  golden_stability sensitivity --stages sensitivity --golden "${GOLDEN:-$out/golden}"
}

soak() {
  timeout -k 10 "$(at_most 480)" python3 benchmarks/soak.py --out "$out/soak.json" > "$out/soak.txt" 2>&1 || failed+=" soak"
  tail -n 40 "$out/soak.txt"
}

endings() {
  timeout -k 10 "$(at_most 240)" python3 benchmarks/endings.py --out "$out/endings.json" > "$out/endings.txt" 2>&1 || failed+=" endings"
  cat "$out/endings.txt"
}

overhead() {
  local program=benchmarks/nvtx_cost.py
  if [ -e $program ]; then
    timeout -k 10 60 python3 $program > "$out/nvtx.json" || failed+=" nvtx"
  fi
  # A round takes about 45 s. The last round may exceed the budget.
  # shellcheck disable=SC2086
  timeout -k 10 "$(at_most 3600)" python3 benchmarks/overhead.py --out "$out/overhead.json" \
    --budget "$(($(left) - 20))" ${OVERHEAD:-} > "$out/overhead.txt" 2>&1 || failed+=" overhead"
  grep -v '^|' "$out/overhead.txt" | tail -n 20
  local nvtx=()
  [ -s "$out/nvtx.json" ] && nvtx=(--nvtx "$out/nvtx.json")
  if [ -e "$out/overhead.json" ]; then
    python3 benchmarks/report.py "$out/overhead.json" "${nvtx[@]}" > "$out/overhead.md" && cat "$out/overhead.md"
  fi
}

for part in "${@:-all}"; do
  case $part in
    captures | tests | plugin | stability | sensitivity | overhead | soak | endings) $part ;;
    all)
      captures; tests; plugin; soak; endings
      if [ -n "${CUPY_TESTS:-}" ]; then stability; sensitivity; fi
      overhead  # takes the time that is left
      ;;
    *) echo "unknown part $part: captures, tests, plugin, stability, sensitivity, overhead, soak, endings or all" >&2; exit 2 ;;
  esac
done
echo "took $SECONDS s${failed:+; FAILED:$failed}"
[ -z "$failed" ]
