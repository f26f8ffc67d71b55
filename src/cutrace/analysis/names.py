"""Kernel names that stay the same from build to build and from GPU to GPU: what golden files and tables call a kernel.

docs/metrics.md has the rule with its reasons; this module is the rule. A name loses what the compiler or a code
generator adds to it (mangling, template arguments, parameters, hashes, sequence numbers) and keeps what the people
who wrote the kernel called it, its namespaces included. Folding a folded name changes nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

from .._native import demangle

#: What a kernel without a name is called.
UNKNOWN = "(unknown kernel)"

# Folding may uncover a name that folds again. Each round shortens the name, so this many are never needed.
_ROUNDS = 64

_ANONYMOUS = "(anonymous namespace)"
_CLOSES = {"(": ")", "[": "]", "{": "}", "<": ">"}
_OPERATOR = r"(?<!\w)operator\s*(?:\(\)|\[\]|<=>|->\*?|<<=?|>>=?|<=?|>=?)"
_TOKEN = re.compile(_OPERATOR + r"|::|[(\[{<]")
_BRACKET = re.compile(_OPERATOR + r"|->|[][(){}<>]")
_ARGUMENT = re.compile(_OPERATOR + r"|[(\[{<,]")
_QUALIFIERS = re.compile(r"(?:\s*(?:const|volatile|noexcept|&&?)(?!\w))+")

#: Functions that are nothing but the way to run the one named by their first template argument: it stays.
_WRAPPER = re.compile(r"(?:^|::)(?:cutlass\w*::(?:Kernel\d?|device_kernel)|_kernel_agent|enable_sm\d\w*)$")

# Namespaces that say which build this is: nvcc's for one file, those that libraries put around each release.
_BUILD_NAMESPACE = re.compile(r"_GLOBAL__N_\w*|_INTERNAL_\w+|(?:CUB|THRUST|CCCL)_\d\w*|_V_\d\w*|__\d+")

# Kernels return nothing; some write it as a type that is void only if a condition holds.
_RETURNED = re.compile(r"^(?:void|auto|decltype|[\w:]+::type) +(?=[\w:{])")

_NV_STATIC = re.compile(r"__nv_static_(\d+)_")
_CLONE = re.compile(r"(?:\.(?:constprop|isra|part|cold|llvm|lto_priv|clone)(?:\.\d+)*|\$\d+)+$")

_DTYPE = r"(?:bool|u?int\d*|float\d*|bfloat16|complex\d*)"

#: What code generators add, each with what stands for it in the stable name.
_GENERATED = (
    # PyTorch's Inductor numbers the kernels of a file.
    (re.compile(r"^(triton_[a-z]{3}_fused\w*?)(?:_\d+)+$"), r"\1"),
    # CuPy appends the types of the arguments.
    (re.compile(rf"^(cupyx?_\w+?)__{_DTYPE}(?:_{_DTYPE})*$"), r"\1"),
    # Warp puts a hash of the module between the name and the direction.
    (re.compile(r"(?<=\w)_[0-9a-f]{8}(?=_cuda_kernel_(?:forward|backward)$)"), ""),
    # nvFuser numbers fusions, concretizations, runtimes and groups.
    (re.compile(r"^(nvfuser\w*?)_f\d+_c\d*_r\d+_g\d+$"), r"\1"),
    # A digest, as any cache of compiled kernels may append one.
    (re.compile(r"(?<=\w)_(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{16,}$"), ""),
)
# Triton 2 counts the arguments and says what it knows of each: c constant, d divisible by 16, e by 8.
_TRITON_ARGUMENTS = re.compile(r"_((?:\d+[cde]*)+)$")


@lru_cache(maxsize=1 << 16)
def normalize_kernel(name: str) -> str:
    """The stable name of a kernel, by the rule of docs/metrics.md.

    ``name`` is mangled, demangled or plain, as CUPTI or another tool gives it. Two kernels have the same stable name
    only if their qualified names are equal but for what compilers and code generators add. Names that cannot be
    parsed come back as they are; an empty one is :data:`UNKNOWN`.
    """
    name = name.strip()
    for _ in range(_ROUNDS):
        folded = _generated(_qualified(_readable(name)))
        if not folded or folded == name:
            break
        name = folded
    return name or UNKNOWN


def _readable(name: str) -> str:
    """The name without mangling."""
    static = _NV_STATIC.match(name)
    if static:
        # The number is the length of what nvcc says of the file; an underscore parts it from the kernel's own name.
        rest = name[static.end() + int(static[1][:6]) :]
        if len(rest) > 1 and rest[0] == "_":
            name = rest[1:]
    # Anything else could be taken for a mangled type: a C kernel "f" is no "float".
    return demangle(name) if name.startswith("_Z") else name


def _qualified(name: str) -> str:
    """The namespaces and the function of a C++ name: no return type, template arguments, parameters or tags."""
    parts: list[str] = []
    part, at = "", 0
    name = name.removeprefix("void ").lstrip()
    while token := _TOKEN.search(name, at):
        part, at, text = part + name[at : token.start()], token.end(), token[0]
        if text == "::":
            parts, part = [*parts, part], ""
        elif text not in _CLOSES:  # an operator's name
            part += text
        elif text == "(" and not part.strip() and name.startswith(_ANONYMOUS, token.start()):
            at = token.start() + len(_ANONYMOUS)
        else:
            end = _closing(name, token.start())
            if end is None:  # cut off, or no C++: what is left is kept
                part, at = part + name[token.start() :], len(name)
            elif text == "{":  # lambdas and unnamed types, which have no other name
                part, at = part + name[token.start() : end], end
            else:
                if text == "<" and _WRAPPER.search("::".join(_named([*parts, part]))):
                    inner = _first(name[at : end - 1])
                    part += f"<{inner}>" if inner else ""
                at = m.end() if text == "(" and (m := _QUALIFIERS.match(name, end)) else end
    return _RETURNED.sub("", "::".join(_named([*parts, part + name[at:]])))


def _named(parts: list[str]) -> list[str]:
    """The parts of a qualified name that are the same in every build."""
    stripped = [part.strip() for part in parts]
    spaces = [part for part in stripped[:-1] if part and not _BUILD_NAMESPACE.fullmatch(part)]
    return [*spaces, *filter(None, stripped[-1:])]


def _first(arguments: str) -> str:
    """The first of the template arguments, folded; "" when it is no name."""
    depth_zero, at = len(arguments), 0
    while token := _ARGUMENT.search(arguments, at):
        if token[0] == ",":
            depth_zero = token.start()
            break
        at = (token[0] in _CLOSES and _closing(arguments, token.start())) or token.end()
    first = arguments[:depth_zero].strip()
    return normalize_kernel(first) if re.match(r"[A-Za-z_]", first) else ""


def _closing(name: str, at: int) -> int | None:
    """The place behind the bracket that closes the one at ``at``; None when there is none."""
    stack: list[str] = []
    for token in _BRACKET.finditer(name, at):
        text = token[0]
        if text == "<" and name[token.start() - 1] == ")":
            continue  # (3)<(4): a comparison
        if text in _CLOSES:
            stack.append(_CLOSES[text])
        elif text in stack and not (text == ">" and stack[-1] != ">"):
            # Less-than signs inside parentheses open nothing: whatever closes now closes over them.
            while stack.pop() != text:
                pass
            if not stack:
                return token.end()
    return None


def _generated(name: str) -> str:
    """The name without the numbers and hashes of code generators, which end its last part."""
    if name.endswith((">", "}")):
        return name
    head, separator, last = name.rpartition("::")
    last = _CLONE.sub("", last) or last
    for pattern, kept in _GENERATED:
        last = pattern.sub(kept, last)
    if (suffix := _TRITON_ARGUMENTS.search(last)) and suffix.start() and _counts_arguments(suffix[1]):
        last = last[: suffix.start()]
    return head + separator + last


def _counts_arguments(suffix: str) -> bool:
    """Whether this counts arguments from 0 on, and knows something of one at least."""
    at = number = 0
    while at < len(suffix):
        digits = str(number)
        if not suffix.startswith(digits, at):
            return False
        at, number = at + len(digits), number + 1
        while at < len(suffix) and suffix[at] in "cde":
            at += 1
    return number > 1 and not suffix.isdigit()
