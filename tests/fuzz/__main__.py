"""Run the Python fuzz targets: ``cd tests && python -m fuzz --seconds 60``.

Failing inputs are kept in ``--artifacts``, their tracebacks are printed, and the exit status is 1. After a native crash
or a hang, the file ``current-TARGET`` there has the input.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import resource
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

from . import TARGETS

#: Seconds after which a hanging process is ended, with the stacks of all threads.
PATIENCE = 60
#: The memory limit of the process (bytes), which only inputs with excessive memory exceed.
ADDRESS_SPACE = 6 << 30


def fuzz(name: str, seconds: float, seed: int, artifacts: Path) -> int:
    """Run a target for some seconds of processor time, in a worker. Returns the number of failures."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    target, started = TARGETS[name](), time.process_time()
    done = failures = 0
    seen: set[str] = set()
    while time.process_time() < started + seconds:
        rng = random.Random(f"{seed}-{target.name}-{done}")
        data = target.make(rng)
        (artifacts / f"current-{name}").write_bytes(data)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            target.run(data, memory=done % 50 == 0)
        except Exception as error:
            failures += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            key = f"{type(error).__name__} {where.filename}:{where.lineno}"
            if key not in seen:
                seen.add(key)
                kept = artifacts / f"{target.name}-{sha256(data).hexdigest()[:12]}"
                kept.write_bytes(data)
                print(f"{target.name}: {kept}\n{traceback.format_exc()}", flush=True)
        finally:
            faulthandler.cancel_dump_traceback_later()
        done += 1
    rate = done / (time.process_time() - started)
    print(f"{name}: {done:,} executions, {rate:.0f} a second, {failures} failed, seed {seed}", flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time for all targets together")
    parser.add_argument("--seed", type=int, default=None, help="seed of the random inputs; random by default")
    parser.add_argument("--artifacts", type=Path, default=Path("fuzz-artifacts"))
    parser.add_argument("--input", type=Path, help="run only this input, once")
    arguments = parser.parse_args()
    chosen = arguments.targets or list(TARGETS)
    if arguments.input:
        for name in chosen:
            TARGETS[name]().run(arguments.input.read_bytes())
        return 0
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    arguments.artifacts.mkdir(parents=True, exist_ok=True)
    run = partial(fuzz, seconds=arguments.seconds / len(chosen), seed=seed, artifacts=arguments.artifacts)
    with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
        return 1 if any(list(pool.map(run, chosen))) else 0


if __name__ == "__main__":
    sys.exit(main())
