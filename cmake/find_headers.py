"""Print the include folders of CUDA, CUPTI and NVTX, separated by semicolons, for CMake.

They are looked for in the wheels of this interpreter (nvidia-cuda-runtime, nvidia-cuda-cupti, nvidia-nvtx),
then in a CUDA toolkit.
"""

import os
import sys
from pathlib import Path

WANTED = ("cuda.h", "cupti.h", "nvtx3/nvToolsExt.h")


def candidates():
    for entry in map(Path, sys.path):
        yield from sorted(entry.glob("nvidia/*/include"))
    for root in map(Path, filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"))):
        yield root / "include"
        yield root / "extras" / "CUPTI" / "include"


def main() -> int:
    folders = list(candidates())
    found: list[str] = []
    for header in WANTED:
        folder = next((f for f in folders if (f / header).is_file()), None)
        if folder is None:
            print(
                f"{header} was not found. Install the wheels nvidia-cuda-runtime, nvidia-cuda-cupti and nvidia-nvtx "
                "beside the build, or set CUDA_HOME to a CUDA toolkit.",
                file=sys.stderr,
            )
            return 1
        if str(folder) not in found:
            found.append(str(folder))
    print(";".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
