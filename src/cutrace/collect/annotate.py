"""Ranges around functions of a running Python program, by their names.

The collector runs this file inside the measured program. cutrace need not be installed there, so this file imports only
the standard library. With Python 3.12 and later it uses ``sys.monitoring``: functions without ranges cost nothing after
their first call. With earlier versions it uses a profile function of the collector, which skips such functions.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

#: Functions of a torch module whose ranges get the name of the module.
_CALLS = frozenset(("__call__", "_wrapped_call_impl", "_call_impl", "forward"))
#: Names of the modules inside PyTorch's wrappers.
_WRAPPED = frozenset(
    ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
)
_FUNCTION = 0x1  # CO_OPTIMIZED: neither a module nor the body of a class
_GENERATOR = 0x20 | 0x80 | 0x200  # a generator, coroutine or asynchronous generator


def problem_of(name: str) -> str:
    """A sentence on an error in the name of functions to annotate, "" for a valid name."""
    is_path = "." in name and all(part.isidentifier() for part in name.split("."))
    if is_path or re.fullmatch(r"[^\s,;:]+:[^\s,;:]+", name):
        return ""
    return f"{name!r} names no function: write package.module.function, or MODULES:FUNCTIONS, such as 'mylib.*:step'"


def unused(name: str) -> str:
    """A sentence on a name that matched no call."""
    return (
        f"no call of {name} was annotated: check the name; calls before the first CUDA or NVTX call, and functions "
        "that are not written in Python, have no range"
    )


class _Function:
    """Code that gets ranges. No reference keeps it alive, because a program may make new code all the time.

    :param text: the name of its ranges.
    :param first: the name of its first argument; None when the range does not depend on it.
    :param is_call: torch modules give the range their own name.
    :param owners: a call gets a range only if its first argument is one of these classes, or an object of one of them.
    With None, all calls get a range.
    """

    def __init__(
        self,
        code: CodeType,
        text: str,
        owners: tuple[type, ...] | None,
        at_end: Callable[[weakref.ref[CodeType]], None],
    ) -> None:
        self.code = weakref.ref(code, at_end)
        self.owners = owners
        self.text = text.encode(errors="replace")
        self.is_call = code.co_name in _CALLS
        # The first argument of a generator is not read. It would be read each time that the generator resumes, and
        # before 3.13 each read writes to the dict that locals() returned.
        has_first = (
            code.co_argcount > 0
            and not code.co_flags & _GENERATOR
            and (self.is_call or owners is not None)
        )
        self.first = code.co_varnames[0] if has_first else None


class _Module:
    """A torch module: its ``path`` inside its ``root``, the outermost module that was called."""

    def __init__(self, ref: weakref.ref[Any], root: _Module | None, path: str) -> None:
        self.ref = ref
        self.root = root or self
        self.path = path
        self.names: dict[_Module | None, bytes] = {}  # By the enclosing module.

    def name_in(self, parent: _Module | None) -> bytes:
        """The name of a range inside the range of ``parent``."""
        if len(self.names) >= 100:  # The enclosing modules may be temporary.
            self.names.clear()
        self.names[parent] = name = (
            self._path_in(parent) or _class_of(self.ref())
        ).encode(errors="replace")
        return name

    def _path_in(self, parent: _Module | None) -> str:
        if parent is None or parent.root is not self.root or not parent.path:
            return self.path
        if self.path == parent.path:
            return ""
        return self.path.removeprefix(parent.path + ".")


def _children(module: Any) -> Iterator[tuple[str, Any]]:
    """The modules in a module, each with the step that leads to it. A module inside a wrapper has an empty step."""
    modules = vars(module).get("_modules")
    if isinstance(modules, dict):
        for name, child in modules.items():
            if child is not None:
                yield (
                    ""
                    if name in _WRAPPED or (name == "module" and len(modules) == 1)
                    else str(name),
                    child,
                )


def _class_of(module: Any) -> str:
    modules = vars(module).get("_modules") or {}
    inner = next((modules[name] for name in _WRAPPED if name in modules), None)
    if inner is None:
        return type(module).__name__
    return _class_of(inner)


class _Modules:
    """The torch modules that were seen. PyTorch is not imported, and no module is kept alive."""

    def __init__(self) -> None:
        self.known: dict[
            int, _Module
        ] = {}  # By id(module). The module of an id may no longer exist.

    def find(self, module: Any, parent: _Module | None) -> _Module | None:
        """Return the torch module whose function is called inside the function of ``parent``; None for another object.
        The module is not in :attr:`known`."""
        if not hasattr(type(module), "named_modules") or not isinstance(
            vars(module).get("_modules"), dict
        ):
            return None
        # Do not walk the root for a module that is made for one call, such as a Softmax.
        if parent is not None and (
            vars(module)["_modules"] or vars(module).get("_parameters")
        ):
            root = parent.root.ref()
            if root is not None:
                self._walk(root)
                found = self.known.get(id(module))
                if found is not None and found.ref() is module:
                    return found
        self._walk(module)
        return self.known[id(module)]

    def _walk(self, root: Any) -> None:
        """Note the modules in a root. A module in several roots keeps its first name."""
        paths: dict[int, tuple[Any, str]] = {}
        left = [(root, "")]
        while left:
            module, path = left.pop()
            if id(module) not in paths:
                paths[id(module)] = module, path
                left += [
                    (child, f"{path}.{step}".strip("."))
                    for step, child in reversed([*_children(module)])
                ]
        at_root = self.known.get(id(root))
        if at_root is None or at_root.ref() is not root or at_root.root is not at_root:
            at_root = self._add(root, None, "")
        for key, (module, path) in paths.items():
            known = self.known.get(key)
            if (
                known is None
                or known.ref() is not module
                or self._is_inner(known.root, at_root, paths)
            ):
                self._add(module, at_root, path)

    @staticmethod
    def _is_inner(other: _Module, root: _Module, paths: dict[int, Any]) -> bool:
        """Whether the root ``other`` is a module inside ``root``."""
        module = other.ref()
        return other is not root and (module is None or id(module) in paths)

    def _add(self, module: Any, root: _Module | None, path: str) -> _Module:
        added = _Module(
            weakref.ref(module, functools.partial(self._forget, id(module))), root, path
        )
        self.known[id(module)] = added
        return added

    def _forget(self, key: int, ref: weakref.ref[Any]) -> None:
        if key in self.known and self.known[key].ref is ref:
            del self.known[key]


#: The key of a function. torch.compile replaces the code of a function with other code of the same file, line and name.
_Place = tuple[str, int, str]


def _place(code: CodeType) -> _Place:
    return code.co_filename, code.co_firstlineno, code.co_name


class _Annotator:
    """Finds the functions, and pushes and pops their ranges. ``hooks`` calls :meth:`look_up`, :meth:`enter` and
    :meth:`leave`."""

    def __init__(self, names: Sequence[str], library: str) -> None:
        self.names = list(names)
        self.functions: dict[
            int, _Function
        ] = {}  # By id(code), as long as the code exists.
        self.library = ctypes.PyDLL(library)
        self._push = self.library.cutrace_range_push
        self._pop = self.library.cutrace_range_pop
        self._push.argtypes = [ctypes.c_char_p]
        self._push.restype = None
        self._pop.restype = None
        self._named: dict[
            _Place, tuple[str, tuple[type, ...] | None, list[int]]
        ] = {}  # qualified name, owners, numbers
        patterns = [
            (number, *name.split(":"))
            for number, name in enumerate(names)
            if ":" in name
        ]
        self._patterns: list[tuple[int, str, str]] = patterns  # type: ignore[assignment]
        self._unresolved = {
            number: name.split(".")
            for number, name in enumerate(names)
            if ":" not in name
        }
        self._matched: set[int] = set()
        self._modules = _Modules()
        # The open functions, outermost first: (code, whether there is a range, the innermost module).
        self._thread = threading.local()
        self._hooks: _Monitoring | _Profile = (
            _Monitoring(self) if hasattr(sys, "monitoring") else _Profile(self)
        )

    def start(self) -> None:
        self._resolve()
        self._hooks.start()
        self._open(sys._getframe(1))
        self.library.cutrace_annotated(-1)

    def stop(self) -> list[str]:
        self._hooks.stop()
        for _, has_range, _ in getattr(self._thread, "opened", ()):
            if has_range:
                self._pop()
        return [
            name
            for number, name in enumerate(self.names)
            if number not in self._matched
        ]

    def report_again(self) -> None:
        """Report to the new recording of a forked child which names its parent has matched."""
        self.library.cutrace_annotated(-1)
        for number in self._matched:
            self.library.cutrace_annotated(number)

    def give_up(self, why: str) -> None:
        self.library.cutrace_note(f"no function is annotated: {why}".encode())
        self._matched = {*range(len(self.names))}
        self.report_again()

    # ---- which functions ----

    def look_up(self, code: CodeType, frame: FrameType) -> _Function | None:
        """The function of the code of a frame that starts; None if no range is wanted for the function."""
        if code.co_flags & _FUNCTION == 0 or frame.f_globals is globals():
            return None
        self._resolve()
        known = self.functions.get(id(code))
        if known is not None:
            return known
        text, owners, numbers = self._named.get(_place(code), ("", None, []))
        text = text or getattr(code, "co_qualname", "") or _qualified(code, frame)
        matched = self._matching(text, frame) if self._patterns else []
        if matched:
            owners = None
        if not numbers and not matched:
            return None
        for number in (*numbers, *matched):
            self.library.cutrace_annotated(number)
            self._matched.add(number)
        at_end = functools.partial(self._forget, id(code))
        self.functions[id(code)] = added = _Function(code, text, owners, at_end)
        self._hooks.want(code)
        return added

    def _forget(self, key: int, code: weakref.ref[CodeType]) -> None:
        if key in self.functions and self.functions[key].code is code:
            del self.functions[key]

    def _matching(self, qualname: str, frame: FrameType) -> list[int]:
        """The numbers of the patterns that a function matches."""
        spec = frame.f_globals.get("__spec__")  # of python -m: its __name__ is __main__
        modules = {
            str(frame.f_globals.get("__name__", "")),
            str(getattr(spec, "name", None) or ""),
        } - {""}
        return [
            number
            for number, module, function in self._patterns
            if fnmatchcase(qualname, function)
            and ("<" in function or not qualname.rpartition(".")[2].startswith("<"))
            and any(fnmatchcase(name, module) for name in modules)
        ]

    def _resolve(self) -> None:
        """Look up the names whose modules have been imported since the last call."""
        for number, parts in [*self._unresolved.items()]:
            found = _find(parts)
            if found is None:
                continue
            del self._unresolved[number]
            function, owner = found
            if not isinstance(function, FunctionType):
                a_class = f"is a class: name a function of it, such as {self.names[number]}.__init__"
                if isinstance(function, type):
                    why = a_class
                else:
                    why = "is not written in Python, so its calls cannot be seen"
                self.library.cutrace_note(f"{self.names[number]} {why}".encode())
                self.library.cutrace_annotated(number)
                self._matched.add(number)
                continue
            place = _place(function.__code__)
            _, owners, numbers = self._named.get(place, ("", (), []))
            owners = None if owner is None or owners is None else (*owners, owner)
            self._named[place] = function.__qualname__, owners, [*numbers, number]
            self.functions.pop(id(function.__code__), None)
            self._hooks.reconsider()

    # ---- ranges ----

    def enter(self, function: _Function, frame: FrameType) -> None:
        """Start the range of a function whose frame starts or resumes."""
        try:
            opened = self._thread.opened
        except AttributeError:
            opened = self._open(frame.f_back)
        module = opened[-1][2] if opened else None
        text = function.text
        if function.first is not None:
            this = _first_argument(frame, function.first)
            if function.owners is not None and not issubclass(
                this if isinstance(this, type) else type(this), function.owners
            ):
                opened.append((frame.f_code, False, module))
                return
            if function.is_call:
                called = self._modules.known.get(id(this))
                if called is None or called.ref() is not this:
                    called = self._modules.find(this, module)
                if called is not None:
                    text = called.names.get(module) or called.name_in(module)
                    module = called
        opened.append((frame.f_code, True, module))
        self._push(text)

    def leave(self, code: CodeType, frame: FrameType) -> None:
        """End the range of a function whose frame ends or pauses."""
        try:
            opened = self._thread.opened
        except AttributeError:
            opened = self._open(frame)
        if (
            opened
            and opened[-1][0] is not code
            and not any(entry[0] is code for entry in opened)
        ):
            return
        # The end of a frame may have been missed, such as a frame of another greenlet. Its range ends with the range of
        # its caller.
        while opened:
            ended, has_range, _ = opened.pop()
            if has_range:
                self._pop()
            if ended is code:
                return

    def _open(
        self, frame: FrameType | None
    ) -> list[tuple[CodeType, bool, _Module | None]]:
        """Start the ranges of the functions that run already on this thread: of a frame and its callers."""
        opened: list[tuple[CodeType, bool, _Module | None]] = []
        self._thread.opened = opened
        frames: list[FrameType] = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        for outer in reversed(frames):
            function = self.functions.get(id(outer.f_code)) or self.look_up(
                outer.f_code, outer
            )
            if function is not None:
                self.enter(function, outer)
        return opened


class _Monitoring:
    """Hooks of Python 3.12 and later."""

    def __init__(self, annotator: _Annotator) -> None:
        self._annotator = annotator
        self._monitoring: Any = getattr(sys, "monitoring", None)
        self._tool: int | None = None

    def start(self) -> None:
        monitoring = self._monitoring
        events = monitoring.events
        # The ids 0, 1, 2 and 5 are for debuggers, coverage, profilers and optimisers.
        self._tool = next(
            (tool for tool in (4, 3, 5, 2, 1, 0) if monitoring.get_tool(tool) is None),
            None,
        )
        if self._tool is None:
            raise RuntimeError("other tools use all six places of sys.monitoring")
        monitoring.use_tool_id(self._tool, "cutrace")
        begin, resume, end = self._callbacks()
        monitoring.register_callback(self._tool, events.PY_START, begin)
        for event in (events.PY_RESUME, events.PY_THROW):
            monitoring.register_callback(self._tool, event, resume)
        for event in (events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND):
            monitoring.register_callback(self._tool, event, end)
        # Python has no local events for exceptions.
        monitoring.set_events(
            self._tool, events.PY_START | events.PY_THROW | events.PY_UNWIND
        )

    def stop(self) -> None:
        if self._tool is None:
            return
        self._monitoring.set_events(self._tool, 0)
        for function in [*self._annotator.functions.values()]:
            code = function.code()
            if code is not None:
                self._monitoring.set_local_events(self._tool, code, 0)
        self._monitoring.free_tool_id(self._tool)
        self._tool = None

    def want(self, code: CodeType) -> None:
        events = self._monitoring.events
        if self._tool is not None:
            self._monitoring.set_local_events(
                self._tool, code, events.PY_RETURN | events.PY_YIELD | events.PY_RESUME
            )

    def reconsider(self) -> None:
        if self._tool is not None:
            self._monitoring.restart_events()

    def _callbacks(self) -> tuple[Callable[..., Any], ...]:
        annotator = self._annotator
        functions = self._annotator.functions
        frame = sys._getframe
        not_wanted = self._monitoring.DISABLE

        # An exception must not reach the program.
        def begin(code: CodeType, offset: int) -> Any:
            try:
                function = functions.get(id(code)) or annotator.look_up(code, frame(1))
                if function is None:
                    return not_wanted
                annotator.enter(function, frame(1))
            except Exception:
                return None

        def resume(code: CodeType, offset: int, exception: object = None) -> None:
            try:
                function = functions.get(id(code))
                if function is not None:
                    annotator.enter(function, frame(1))
            except Exception:
                return

        def end(code: CodeType, offset: int, value: object) -> None:
            try:
                if id(code) in functions:
                    annotator.leave(code, frame(1))
            except Exception:
                return

        return begin, resume, end


class _Profile:
    """Hooks of Python before 3.12: a profile function of the collector, for all threads."""

    def __init__(self, annotator: _Annotator) -> None:
        self._annotator = annotator
        self._forget = False
        # The collector compares the address of this function.
        self._handler: Any = self._profiled
        self._function = ctypes.cast(
            annotator.library.cutrace_python_profile, ctypes.c_void_p
        )
        self._set_all = annotator.library.cutrace_python_profile_all
        self._set_all.argtypes = [ctypes.c_void_p]
        self._set_all.restype = None
        prototype = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.py_object)
        self._set = prototype(("PyEval_SetProfile", ctypes.pythonapi))

    def start(self) -> None:
        if sys.getprofile() is not None or threading.getprofile() is not None:
            raise RuntimeError(
                "another profiler is active, and Python before 3.12 supports only one"
            )
        threading.setprofile(self._begin_thread)
        self._set_all(id(self._handler))

    def stop(self) -> None:
        self._set_all(None)
        if threading.getprofile() == self._begin_thread:
            threading.setprofile(None)
        if sys.getprofile() is self._handler:
            sys.setprofile(None)

    def want(self, code: CodeType) -> None:
        pass

    def reconsider(self) -> None:
        self._forget = True

    def _begin_thread(self, frame: FrameType, event: str, argument: object) -> None:
        """The profile function of a new thread, until its first event."""
        self._set(self._function, self._handler)

    def _profiled(self, frame: FrameType, is_call: bool) -> bool | None:
        """See ``cutrace_python_profile``."""
        try:
            annotator = self._annotator
            code = frame.f_code
            function = annotator.functions.get(id(code))
            if function is None:
                function = annotator.look_up(code, frame)
                if function is None:
                    forget = self._forget
                    self._forget = False
                    if forget:
                        return None
                    return False
            if is_call:
                annotator.enter(function, frame)
            else:
                annotator.leave(code, frame)
        except Exception:  # nothing may be raised into the program
            pass
        return True


def _find(parts: Sequence[str]) -> tuple[object, type | None] | None:
    """The object at a path, usually a function, and the class that inherits it (None if no class does). None if the
    path has no object yet. Runs no code of the program."""
    for count in range(len(parts) - 1, 0, -1):
        found: Any = _module(".".join(parts[:count]))
        owner = None
        for part in parts[count:] if found is not None else ():
            if isinstance(found, type):
                classes = found.__mro__
            else:
                classes = (found, *type(found).__mro__)
            holder = next(
                (c for c in classes if part in getattr(c, "__dict__", ())), None
            )
            if holder is None:
                found = None
                break
            owner = found if isinstance(found, type) and holder is not found else None
            found = holder.__dict__[part]
        if found is not None:
            return _unwrapped(found), owner
    return None


def _module(name: str) -> ModuleType | None:
    main = sys.modules.get("__main__")
    is_main = name == getattr(
        getattr(main, "__spec__", None), "name", None
    )  # python -m name
    if is_main:
        return main
    return sys.modules.get(name)


def _unwrapped(value: Any) -> object:
    """The function behind decorators."""
    for _ in range(32):  # A wrapper may refer to itself.
        attributes = getattr(value, "__dict__", {})
        if "__wrapped__" in attributes:
            value = attributes["__wrapped__"]
        elif isinstance(value, (staticmethod, classmethod, MethodType)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        elif isinstance(
            value,
            (functools.partial, functools.partialmethod, functools.cached_property),
        ):
            value = value.func
        else:
            break
    return value


def _qualified(code: CodeType, frame: FrameType) -> str:
    """The qualified name of a method in Python 3.10, whose code objects have none."""
    if code.co_argcount:
        this = _first_argument(frame, code.co_varnames[0])
        for owner in (this if isinstance(this, type) else type(this)).__mro__:
            function = _unwrapped(vars(owner).get(code.co_name))
            if isinstance(function, FunctionType) and function.__code__ is code:
                return f"{owner.__qualname__}.{code.co_name}"
    return code.co_name


def _first_argument(frame: FrameType, name: str) -> Any:
    variables = frame.f_locals
    this = variables.get(name)
    # Before 3.13 the frame keeps this dict to its end, and the dict would keep alive objects that the function deletes.
    # Three references to it are usual: of the frame, of this function and of the call.
    if sys.version_info < (3, 13) and sys.getrefcount(variables) == 3:
        variables.clear()
    return this


_current: _Annotator | None = None


def start(names: Sequence[str], library: str) -> None:
    """Annotate functions from now on. Functions that run already on this thread get a range that starts now.

    :param names: as in the option ``annotate`` of the collector; see :func:`problem_of`.
    :param library: path of the collector, which is loaded already.
    """
    global _current
    if _current is not None and _current.names == list(names):  # in a forked child
        return _current.report_again()
    stop()
    annotator = _Annotator(names, library)
    try:
        annotator.start()
    except Exception as error:
        annotator.stop()
        annotator.give_up(str(error))
    else:
        _current = annotator


def stop() -> list[str]:
    """Remove the hooks. Returns the names that matched no call."""
    global _current
    annotator = _current
    _current = None
    if annotator is None:
        return []
    return annotator.stop()
