"""What can be checked about the code is a test, not a review remark.

Each test lists the places that break a rule and says what to do about them. The rules that ruff,
mypy and import-linter know are in pyproject.toml; `scripts/check` runs them all.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WINDOW = ROOT / ".src" / "tensorcast"
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 100
BROAD_EXCEPTS_MAX = 13
IGNORES_PER_1000_LINES_MAX = 0.5

PURE = ("schema", "controlplane/core", "movers/core")
DOCUMENTED = ("schema", "log", "client", "controlplane", "movers", "storage", "engines")
PROCESSES = (
    "cli.main",
    "controlplane.simulator.main",
    "controlplane.main",
    "controlplane.verifier",
    "movers.main",
    "deploy.supervisor",
)
ENTRY_POINTS = (
    "engines.vllm.plugin",  # called by vLLM, see pyproject.toml
    "engines.vllm.updates",  # called by trainers
    "engines.receiving",  # called by engines of one's own
    "engines.vllm.disaggregation",  # called by routers
)
FAKES = (  # published for tests, measurements and examples
    "log.memory",
    "movers.transports.loopback",
    "controlplane.simulator.workload",
)
MAY_NAME_ITS_ERROR = ("client/torchfile.py",)  # torch.load raises pickle's own error
# Spelled in two parts, so that this file does not break its own rules.
BANNED_NAMES = {"s" + "rc": "source", "d" + "st": "target"}
MACHINE_PATHS = re.compile(r"(?<![\w.])/(work|tmp/(tc|bash_jobs))\b")
FunctionDef = ast.FunctionDef | ast.AsyncFunctionDef


# ---- what there is -----------------------------------------------------------------------------


@cache
def rooms() -> tuple[Path, ...]:
    """The folders at the top that hold a package."""
    return tuple(sorted(p.parent for p in ROOT.glob("*/__init__.py")))


def sources() -> Iterator[Path]:
    """The modules of the package."""
    yield WINDOW / "__init__.py"
    for room in rooms():
        yield from sorted(p for p in room.rglob("*.py") if p.parent.name != "versions")


def python_files() -> Iterator[Path]:
    """All our Python files."""
    yield from sources()
    for folder in ("tests", "benchmarks", "examples", "scripts", "docs"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def texts() -> Iterator[Path]:
    """All our text files: what git tracks, or what looks like text where there is no git."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    names = listed.stdout.split("\0") if listed.returncode == 0 else []
    yield from (ROOT / name for name in names if (ROOT / name).is_file()) if names else ()
    yield from () if names else python_files()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def place(path: Path, line: int | None = None) -> str:
    name = str(path.relative_to(ROOT))
    return name if line is None else f"{name}:{line}"


def is_under(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(ROOT / folder) for folder in folders)


def module_name(path: Path) -> str:
    """`schema/aggregates/key.py` as `schema.aggregates.key`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def refuse(found: list[str], what: str) -> None:
    listed = "\n  ".join(sorted(found))
    assert not found, f"{what}\n  {listed}"


# ---- sizes -------------------------------------------------------------------------------------


def test_files_are_short():
    found = []
    for path in python_files():
        lines = path.read_text().count("\n")
        if lines > FILE_LINES_MAX:
            found.append(f"{place(path)}: {lines} lines")
    refuse(found, f"Split these files by idea; {FILE_LINES_MAX} lines is the limit:")


def test_functions_are_short():
    found = []
    for path in python_files():
        for node in ast.walk(tree(path)):
            if isinstance(node, FunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{place(path, node.lineno)}: {node.name} has {lines} lines")
    refuse(found, f"Split these functions; {FUNCTION_LINES_MAX} lines is the limit:")


def test_lines_are_short():
    found = [
        place(path, number)
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]
    refuse(found, f"Wrap these lines at {COLUMNS_MAX} columns:")


# ---- rooms -------------------------------------------------------------------------------------


def test_every_room_has_its_link_in_the_window():
    found = [
        f"ln -s ../../{room.name} .src/tensorcast/{room.name}"
        for room in rooms()
        if room.name not in ("tests", "benchmarks", "examples")
        and (WINDOW / room.name).resolve() != room
    ]
    refuse(found, "A room without its link is missing from the package; make it:")


def test_the_window_holds_links_only():
    kept = {"__init__.py", "py.typed", "__pycache__"}
    found = [
        place(path)
        for path in WINDOW.iterdir()
        if path.name not in kept and not (path.is_symlink() and path.is_dir())
    ]
    refuse(found, "Only links to rooms belong into the window; move or mend these:")


def test_every_module_of_a_pure_room_has_its_tests():
    found = []
    for path in sources():
        if is_under(path, PURE) and path.name != "__init__.py":
            room = path.relative_to(ROOT).parts[0]
            if not list((ROOT / "tests/unit" / room).rglob(f"test_{path.name}")):
                found.append(f"{place(path)}: tests/unit/{room}/test_{path.name} is missing")
    refuse(found, "Write a test module for each module of a pure room:")


def test_no_module_is_forgotten():
    """Each one is imported by another module, loaded by its name, or started as a process."""
    imported = {name for path in sources() for name in imports(path)}
    words = {word for path in sources() for word in strings(path)}
    found = []
    for path in sources():
        name = module_name(path)
        is_known = name in PROCESSES + ENTRY_POINTS + FAKES or name.startswith("migrations")
        if path.name == "__init__.py" or is_known:
            continue
        full = f"tensorcast.{name}"
        is_loaded = full in words or {f"{full.rpartition('.')[0]}.", path.stem} <= words
        if full not in imported and not is_loaded:
            found.append(place(path))
    refuse(found, "Nothing uses these modules; use or delete them:")


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a module imports."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def strings(path: Path) -> Iterator[str]:
    """The strings of a module, also the fixed parts of f-strings."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


# ---- words -------------------------------------------------------------------------------------


def names_of(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that a module gives to something, and its line."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, FunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def test_names_are_words():
    found = []
    for path in python_files():
        for name, line in names_of(tree(path)):
            words = set(name.lower().split("_")) & set(BANNED_NAMES)
            found += [f"{place(path, line)}: {name}: say {BANNED_NAMES[word]!r}" for word in words]
    refuse(found, "Give these their whole words:")


def test_nothing_can_run_code_that_it_reads():
    banned = {"pic" + "kle", "marshal", "shelve", "dill", "cloudpic" + "kle"}
    found = []
    for path in python_files():
        for node in ast.walk(tree(path)) if place(path) not in MAY_NAME_ITS_ERROR else ():
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]}
            else:
                continue
            found += [f"{place(path, node.lineno)}: {name}" for name in names & banned]
    refuse(found, "A file or a peer must not be able to run code; use msgspec or safetensors:")


def test_no_file_names_a_place_of_one_machine():
    found = []
    for path in texts():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{place(path, number)}: {line.strip()[:80]}"
            for number, line in enumerate(lines, 1)
            if MACHINE_PATHS.search(line) and path != Path(__file__).resolve()
        ]
    refuse(found, "Use a temporary folder, a setting or a relative path instead:")


# ---- tests -------------------------------------------------------------------------------------


def test_tests_of_pure_rooms_patch_nothing():
    """A value in, a value out: what needs a patch does not belong into a pure room."""
    found = []
    for path in (ROOT / "tests/unit").rglob("*.py"):
        subject = path.relative_to(ROOT / "tests/unit")
        is_pure = subject.parts[0] == "schema" or "core" in subject.parts
        if is_pure and re.search(r"\bmock\b", path.read_text()):
            found.append(place(path))
    refuse(found, "Pass values or fakes instead of mocks in tests of pure rooms:")


def is_sleep(node: ast.AST) -> bool:
    """`time.sleep(x)`, or `asyncio.sleep(x)` with x other than 0 (which only yields)."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr != "sleep" or not isinstance(node.func.value, ast.Name):
        return False
    yields = [isinstance(a, ast.Constant) and a.value == 0 for a in node.args]
    return node.func.value.id in ("time", "asyncio") and yields != [True]


def test_unit_tests_do_not_sleep():
    found = [
        place(path, node.lineno)
        for path in (ROOT / "tests/unit").rglob("*.py")
        for node in ast.walk(tree(path))
        if is_sleep(node) and isinstance(node, ast.Call)
    ]
    refuse(found, "Wait for an event or use a clock that the test moves:")


# ---- promises ----------------------------------------------------------------------------------


def bases(node: ast.ClassDef) -> set[str]:
    """The last words of the base classes: `Protocol` also for `typing.Protocol[T]`."""
    return {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}


def speaks_for_itself(node: ast.ClassDef) -> bool:
    """A class of values only: an enumeration, an error of the tree, a message with named fields."""
    return all(
        isinstance(member, ast.AnnAssign | ast.Assign | ast.Pass)
        or (isinstance(member, ast.Expr) and isinstance(member.value, ast.Constant))
        for member in node.body
    )


def public(nodes: list[ast.stmt]) -> Iterator[FunctionDef | ast.ClassDef]:
    for node in nodes:
        if isinstance(node, FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def undocumented(path: Path) -> Iterator[str]:
    for node in public(tree(path).body):
        is_class = isinstance(node, ast.ClassDef)
        if not ast.get_docstring(node) and not (is_class and speaks_for_itself(node)):
            yield f"{place(path, node.lineno)}: {node.name}"
        if not isinstance(node, ast.ClassDef) or "Protocol" in bases(node):
            continue
        for member in public(node.body):
            promised = ast.get_docstring(member) or member.name in protocol_members()
            if not promised and not is_trivial(member):
                yield f"{place(path, member.lineno)}: {node.name}.{member.name}"


@cache
def protocol_members() -> frozenset[str]:
    """What our protocols ask for: they hold the docstrings for all that keep them."""
    classes = (n for path in sources() for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef))
    protocols = (node for node in classes if "Protocol" in bases(node))
    return frozenset(m.name for node in protocols for m in node.body if isinstance(m, FunctionDef))


def is_trivial(node: FunctionDef | ast.ClassDef) -> bool:
    """A property, or a body of one line, whose name and types are the promise."""
    if isinstance(node, ast.ClassDef):
        return speaks_for_itself(node)
    names = {
        d.id if isinstance(d, ast.Name) else getattr(d, "attr", "") for d in node.decorator_list
    }
    return bool(names & {"property", "cached_property", "setter", "override"}) or (
        len(node.body) == 1 and not isinstance(node.body[0], ast.With | ast.AsyncWith | ast.For)
    )


def test_public_names_say_what_they_promise():
    found = [
        line for path in sources() if is_under(path, DOCUMENTED) for line in undocumented(path)
    ]
    refuse(found, "Write a docstring: what it promises, what it changes, what it raises:")


def test_every_module_says_what_it_is_for():
    found = [place(path) for path in sources() if path.stat().st_size and not docstring_of(path)]
    refuse(found, "Open the module with what it is for and what it never does:")


def docstring_of(path: Path) -> str | None:
    return ast.get_docstring(tree(path))


def test_the_public_names_resolve():
    typed = {
        alias.name
        for node in ast.walk(tree(WINDOW / "__init__.py"))
        if isinstance(node, ast.ImportFrom) and node.module == "tensorcast.client"
        for alias in node.names
    }
    code = (
        "import json, tensorcast as tc;"
        "print(json.dumps({n: bool(getattr(tc, n, None).__doc__) for n in tc.__all__}))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(WINDOW.parent)},  # these files, not installed ones
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"tensorcast.client must offer the names of the facade: {done}"
    documented = json.loads(done.stdout)
    assert typed == set(documented), "The facade's imports and __all__ must name the same."
    found = [name for name, has_docstring in documented.items() if not has_docstring]
    refuse(found, "These public names need a docstring:")


def test_the_processes_start_without_torch():
    """It takes seconds to import, which every start and every restart would wait for."""
    heavy = ("torch", "numpy", "typer", "rich")
    for name in PROCESSES[1:]:
        code = f"import sys, tensorcast.{name}; print([m for m in {heavy} if m in sys.modules])"
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={**os.environ, "PYTHONPATH": str(WINDOW.parent)},  # these files, not installed ones
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() == "[]", f"tensorcast.{name} imports too much: {done}"


# ---- ways out ----------------------------------------------------------------------------------


def test_broad_excepts_are_rare():
    """Only a supervising loop may catch what it does not know; to raise it again is fine."""
    found = []
    for path in sources():
        handlers = (n for n in ast.walk(tree(path)) if isinstance(n, ast.ExceptHandler))
        broad = (n for n in handlers if is_broad(n.type) and not isinstance(n.body[-1], ast.Raise))
        found += [place(path, node.lineno) for node in broad]
    assert len(found) <= BROAD_EXCEPTS_MAX, "Catch narrower errors at some of these:\n  " + (
        "\n  ".join(found)
    )


def is_broad(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(is_broad(one) for one in kind.elts)
    return kind is None or (
        isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException")
    )


def test_ways_around_the_checkers_are_rare_and_explained():
    wrong, ignores, lines = [], 0, 0
    for path in python_files():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            lines += 1
            if "# type:" + " ignore" in line:
                ignores += 1
                if not re.search(r"type: ignore\[[\w, -]+\]\s+# \w+", line):
                    wrong.append(f"{place(path, number)}: {line.strip()[-60:]}")
            if "# no" + "qa" in line and not re.search(r"noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*", line):
                wrong.append(f"{place(path, number)}: {line.strip()[-60:]}")
    refuse(wrong, "Name the code, and for types the reason: `# type: ignore[code]  # why`:")
    limit = IGNORES_PER_1000_LINES_MAX * lines / 1000
    assert ignores <= limit, f"{ignores} type ignores; at most {limit:.0f} for {lines} lines."
