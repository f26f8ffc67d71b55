"""Write a Python module with the names of CUDA's functions by CUPTI callback id, from the headers of CUPTI.

nvprof's files have the ids alone, and are read on machines without CUPTI. A build without CUPTI's headers has no names.
"""

import argparse
import re
from pathlib import Path


def names(header: Path, domain: str) -> dict[int, str]:
    found = re.findall(rf"\bCUPTI_{domain}_TRACE_CBID_(\w+)\s*=\s*(\d+)\s*,", header.read_text())
    # The name of a function ends in the version of CUDA that introduced its signature.
    return {int(number): re.sub(r"_v\d+$", "", name) for name, number in found if name not in ("INVALID", "SIZE")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path)
    parser.add_argument("includes", nargs="*", type=Path)
    args = parser.parse_args()
    folder = next((f for f in args.includes if (f / "cupti_runtime_cbid.h").is_file()), None)
    lines = ['"""Names of CUDA\'s functions by CUPTI callback id, made from CUPTI\'s headers by the build."""', ""]
    for domain in ("RUNTIME", "DRIVER"):
        lines.append(f"{domain} = {{")
        found = names(folder / f"cupti_{domain.lower()}_cbid.h", domain) if folder else {}
        lines += [f'    {number}: "{name}",' for number, name in sorted(found.items())]
        lines += ["}", ""]
    args.module.parent.mkdir(parents=True, exist_ok=True)
    args.module.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
