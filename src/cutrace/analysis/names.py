"""Stable kernel names for golden files and tables: the same in every build and on every GPU.

docs/internals/metrics.md explains the rule that this module implements. It removes the additions of compilers and code
generators: mangling, template arguments, parameters, hashes, sequence numbers. It keeps the name in the source and its
namespaces. The stable name of a stable name is the name itself.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .._native import demangle

#: The name of kernels without a name.
UNKNOWN = "(unknown kernel)"

# The limit of rounds. Each round shortens the name, so the limit is never reached.
_ROUNDS = 64

_ANONYMOUS = "(anonymous namespace)"
_CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">"}
_OPERATOR = r"(?<!\w)operator\s*(?:\(\)|\[\]|<=>|->\*?|<<=?|>>=?|<=?|>=?)"
_TOKEN = re.compile(_OPERATOR + r"|::|[(\[{<]")
_BRACKET = re.compile(_OPERATOR + r"|->|[][(){}<>]")
_ARGUMENT = re.compile(_OPERATOR + r"|[(\[{<,]")
_QUALIFIERS = re.compile(r"(?:\s*(?:const|volatile|noexcept|&&?)(?!\w))+")

#: Functions that only run the function in their first template argument. So this argument is kept.
_WRAPPER = re.compile(
    r"(?:^|::)(?:cutlass\w*::(?:Kernel\d?|device_kernel)|_kernel_agent|enable_sm\d\w*)$"
)

# Namespaces that depend on the build: nvcc's namespaces for one file, and namespaces for the releases of a library.
_BUILD_NAMESPACE = re.compile(
    r"_GLOBAL__N_\w*|_INTERNAL_\w+|(?:CUB|THRUST|CCCL)_\d\w*|_V_\d\w*|__\d+"
)

# Kernels return void. Some names spell void as a type that depends on a condition.
_RETURNED = re.compile(r"^(?:void|auto|decltype|[\w:]+::type) +(?=[\w:{])")

_NV_STATIC = re.compile(r"__nv_static_(\d+)_")
_CLONE = re.compile(
    r"(?:\.(?:constprop|isra|part|cold|llvm|lto_priv|clone)(?:\.\d+)*|\$\d+)+$"
)

_DTYPE = r"(?:bool|u?int\d*|float\d*|bfloat16|complex\d*)"

#: Additions of code generators, each with its replacement in the stable name.
_GENERATED = (
    # PyTorch's Inductor numbers the kernels of a file.
    (re.compile(r"^(triton_[a-z]{3}_fused\w*?)(?:_\d+)+$"), r"\1"),
    # CuPy appends the types of the arguments.
    (re.compile(rf"^(cupyx?_\w+?)__{_DTYPE}(?:_{_DTYPE})*$"), r"\1"),
    # Warp puts a hash of the module between the name and the direction.
    (re.compile(r"(?<=\w)_[0-9a-f]{8}(?=_cuda_kernel_(?:forward|backward)$)"), ""),
    # nvFuser numbers fusions, concretizations, runtimes and groups.
    (re.compile(r"^(nvfuser\w*?)_f\d+_c\d*_r\d+_g\d+$"), r"\1"),
    # Caches of compiled kernels append digests.
    (re.compile(r"(?<=\w)_(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{16,}$"), ""),
)
# Triton 2 numbers the arguments and appends their properties: c constant, d divisible by 16, e by 8.
_TRITON_ARGUMENTS = re.compile(r"_((?:\d+[cde]*)+)$")


@lru_cache(maxsize=1 << 16)
def normalize_kernel(name: str) -> str:
    """The stable name of a kernel (docs/internals/metrics.md).

    ``name`` may be mangled, demangled or plain. Two kernels have the same stable name only if their qualified names are
    equal except for additions of compilers and code generators. Names that cannot be parsed are returned unchanged; an
    empty name gives :data:`UNKNOWN`.
    """
    name = name.strip()
    for _ in range(_ROUNDS):
        folded = _generated(_qualified(_readable(name))).strip()
        if not folded or folded == name:
            break
        name = folded
    return name or UNKNOWN


def _readable(name: str) -> str:
    """The name without mangling."""
    static = _NV_STATIC.match(name)
    if static:
        # The number is the length of nvcc's prefix for the file; an underscore separates it from the kernel's name.
        rest = name[static.end() + int(static[1][:6]) :]
        if len(rest) > 1 and rest[0] == "_":
            name = rest[1:]
    # The demangler reads other names as types: the C kernel "f" would become "float".
    if name.startswith("_Z"):
        return demangle(name)
    return name


def _qualified(name: str) -> str:
    """The namespaces and the function of a C++ name, without return type, template arguments, parameters and tags."""
    parts: list[str] = []
    part = ""
    at = 0
    name = name.removeprefix("void ").lstrip()
    while token := _TOKEN.search(name, at):
        part += name[at : token.start()]
        at = token.end()
        text = token[0]
        if text == "::":
            parts.append(part)
            part = ""
        elif text not in _CLOSES:  # The name of an operator.
            part += text
        elif not part.strip() and name.startswith(_ANONYMOUS, token.start()):
            at = token.start() + len(_ANONYMOUS)
        else:
            end = _closing(name, token.start())
            if end is None:
                # A truncated name, or a name of another language, keeps the rest.
                part += name[token.start() :]
                at = len(name)
                continue
            if text == "{":  # Lambdas and unnamed types have no other name.
                part += name[token.start() : end]
            elif text == "<" and _WRAPPER.search(_joined([*parts, part])):
                inner = _first(name[at : end - 1])
                if inner:
                    part += f"<{inner}>"
            at = end
            qualifiers = _QUALIFIERS.match(name, end)
            if text == "(" and qualifiers:
                at = qualifiers.end()
    parts.append(part + name[at:])
    return _RETURNED.sub("", _joined(parts))


def _joined(parts: list[str]) -> str:
    """The qualified name of these parts. Parts that depend on the build are left out."""
    *namespaces, last = [part.strip() for part in parts]
    kept = [name for name in namespaces if not _BUILD_NAMESPACE.fullmatch(name)]
    return "::".join(filter(None, [*kept, last]))


def _first(arguments: str) -> str:
    """The stable name of the first template argument; "" if it is not a name."""
    depth_zero = len(arguments)
    at = 0
    while token := _ARGUMENT.search(arguments, at):
        if token[0] == ",":
            depth_zero = token.start()
            break
        at = token.end()
        if token[0] in _CLOSES:
            at = _closing(arguments, token.start()) or at
    first = arguments[:depth_zero].strip()
    if re.match(r"[A-Za-z_]", first):
        return normalize_kernel(first)
    return ""


def _closing(name: str, at: int) -> int | None:
    """Return the index after the bracket that closes the bracket at ``at``, or None if no bracket closes it."""
    stack: list[str] = []
    for token in _BRACKET.finditer(name, at):
        text = token[0]
        if text == "<" and name[token.start() - 1] == ")":
            continue  # A comparison: (3)<(4)
        if text in _CLOSES:
            stack.append(_CLOSES[text])
        elif text in stack and not (text == ">" and stack[-1] != ">"):
            # Less-than signs inside parentheses are not brackets: drop them.
            while stack.pop() != text:
                pass
            if not stack:
                return token.end()
    return None


def _generated(name: str) -> str:
    """The name without the numbers and hashes that code generators append to its last part."""
    if name.endswith((">", "}")):
        return name
    head, separator, last = name.rpartition("::")
    last = _CLONE.sub("", last) or last
    for pattern, kept in _GENERATED:
        last = pattern.sub(kept, last)
    suffix = _TRITON_ARGUMENTS.search(last)
    if suffix and suffix.start() and _counts_arguments(suffix[1]):
        last = last[: suffix.start()]
    return head + separator + last


def _counts_arguments(suffix: str) -> bool:
    """Whether the suffix numbers arguments from 0 and has a property of at least one."""
    at = 0
    number = 0
    while at < len(suffix):
        digits = str(number)
        if not suffix.startswith(digits, at):
            return False
        at += len(digits)
        number += 1
        while at < len(suffix) and suffix[at] in "cde":
            at += 1
    return number > 1 and not suffix.isdigit()
