"""Write a C++ header with the names of all API calls by callback id, from CUPTI's own headers.

``callback_names.py OUTPUT FOLDER...``: the folders are the compiler's include folders for CUPTI.
"""

import re
import sys
from pathlib import Path

DOMAINS = {"kRuntimeCalls": ("cupti_runtime_cbid.h", "RUNTIME"), "kDriverCalls": ("cupti_driver_cbid.h", "DRIVER")}


def table(name: str, header: Path, domain: str) -> str:
    entries = re.findall(rf"CUPTI_{domain}_TRACE_CBID_(\w+)\s*=\s*(\d+)\s*,", header.read_text())
    calls = [(int(number), call) for call, number in entries if call not in ("INVALID", "SIZE")]
    if not calls:
        raise SystemExit(f"{header} names no calls")
    lines = [f'  {{{number}, "{call}"}},\n' for number, call in calls]
    return f"inline constexpr CallName {name}[] = {{\n{''.join(lines)}}};\n"


def main(output: str, *folders: str) -> None:
    text = "#pragma once\n\nstruct CallName {\n  unsigned id;\n  const char* name;\n};\n"
    for name, (header, domain) in DOMAINS.items():
        found = [path for folder in folders if (path := Path(folder) / header).is_file()]
        if not found:
            raise SystemExit(f"{header} was not found in {', '.join(folders)}")
        text += table(name, found[0], domain)
    Path(output).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
