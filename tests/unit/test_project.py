"""Rules of the source tree that no linter states: sizes, documented and typed surfaces, forbidden words."""

from __future__ import annotations

import ast
import re
import socket
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "experiment"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_README_LINES = 150

WRITTEN_FOLDERS = (".ci", "bench", "docs", "experiment", "recipes", "requirements", "tests")
"""Folders whose text files are committed; `plans/` and `runs/` are made by the commands."""

BANNED = ("json.dump", "json.dumps", "random", "time.time", "torch.multinomial", "uuid")
ALLOWED = {
    ("experiment/cli/audit.py", "json.dumps"): "`audit --json` is printed, not hashed",
    ("experiment/pipeline/recipes.py", "json.dumps"): "TOML becomes JSON once, to be validated strictly",
    ("experiment/pipeline/template.py", "json.dumps"): "renders tool calls as chat templates do",
    (
        "experiment/decisions/divergence.py",
        "json.dumps",
    ): "writes tool calls as chat templates do; the text is not hashed",
    ("experiment/training/state.py", "random"): "seals and restores Python's generator, draws nothing from it",
}

# Written in pieces so that this file does not contain what it forbids.
MACHINE_PATH = re.compile(r"(?<![\w.~*/-])/" + r"(?:root|home|work|Users|mnt|opt|scratch)/\w")
REGISTRY = re.compile(
    r"\b(?:" + "|".join(("py" + r"pi\.org", "python" + r"hosted\.org", "download" + r"\.pytorch\.org")) + r")\b"
)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _functions(path: Path) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(_tree(path)) if isinstance(node, FunctionNode))


def _public(path: Path) -> Iterator[FunctionNode | ast.ClassDef]:
    """Public definitions of a module and the public methods of its public classes."""
    for node in _tree(path).body:
        if isinstance(node, FunctionNode | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (m for m in node.body if isinstance(m, FunctionNode) and not m.name.startswith("_"))


def _written_files() -> list[Path]:
    top = [path for path in ROOT.iterdir() if path.is_file() and path.name not in {"uv.lock", ".git"}]
    nested = [
        path
        for folder in WRITTEN_FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return sorted(top + nested)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def _imported_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> dotted origin, for every import anywhere in the module."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _uses(tree: ast.Module) -> set[str]:
    """Dotted names of all imports and of all attributes of imported modules."""
    names = _imported_names(tree)
    attributes = {
        f"{names[node.value.id]}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    }
    return set(names.values()) | attributes


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_module_is_short_enough_to_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_MODULE_LINES


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_functions_fit_on_a_screen(path: Path) -> None:
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in _functions(path)}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_public_definitions_are_documented(path: Path) -> None:
    assert ast.get_docstring(_tree(path)), "the module has no docstring"
    # A method marked `override` is documented where it is declared.
    missing = [
        node.name
        for node in _public(path)
        if not ast.get_docstring(node)
        and not any(isinstance(mark, ast.Name) and mark.id == "override" for mark in node.decorator_list)
    ]
    assert missing == []


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_functions_are_fully_typed(path: Path) -> None:
    untyped = []
    for node in _functions(path):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        bare = [a.arg for a in arguments if a and a.annotation is None and a.arg not in {"self", "cls"}]
        if bare or (node.returns is None):
            untyped.append(node.name)
    assert untyped == []


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_unreproducible_calls_are_absent(path: Path) -> None:
    used = _uses(_tree(path))
    found = {banned for banned in BANNED if any(name == banned or name.startswith(f"{banned}.") for name in used)}
    assert {name for name in found if (_relative(path), name) not in ALLOWED} == set()


def test_exceptions_to_the_ban_are_still_needed() -> None:
    unused = [key for key in ALLOWED if not any(name.startswith(key[1]) for name in _uses(_tree(ROOT / key[0])))]
    assert unused == []


@pytest.mark.parametrize("path", [m for m in MODULES if m.name == "__init__.py"], ids=_relative)
def test_package_files_hold_only_a_docstring(path: Path) -> None:
    allowed_public = 1 if path.parent.name in {"audit", "report"} else 0
    definitions = [
        n for n in _tree(path).body if isinstance(n, FunctionNode | ast.ClassDef) and not n.name.startswith("_")
    ]
    assert len(definitions) <= allowed_public


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in MODULES}
    assert sorted(_relative(folder) for folder in folders if not (folder / "__init__.py").is_file()) == []


def test_readme_is_short() -> None:
    assert len(_text(ROOT / "README.md").splitlines()) <= MAX_README_LINES


def test_written_files_name_no_machine_path() -> None:
    assert [_relative(path) for path in _written_files() if MACHINE_PATH.search(_text(path))] == []


def test_written_files_name_no_package_registry() -> None:
    assert [_relative(path) for path in _written_files() if REGISTRY.search(_text(path))] == []


def test_locks_pin_every_package_by_hash_and_name_no_address() -> None:
    for lock in sorted((ROOT / "requirements").glob("*.lock")):
        text = _text(lock)
        pins = re.findall(r"^[a-z0-9][a-z0-9._-]*==\S+.*\\\n    --hash=sha256:[0-9a-f]{64}", text, flags=re.MULTILINE)
        named = re.findall(r"^[a-zA-Z0-9].*$", text, flags=re.MULTILINE)
        assert pins
        assert len(pins) == len(named), f"{lock.name}: a package without a pinned version and a hash"
        assert "://" not in text


def test_smaller_locks_hold_the_versions_of_the_development_lock() -> None:
    def pins(name: str) -> set[str]:
        text = _text(ROOT / "requirements" / f"{name}.lock")
        return set(re.findall(r"^([a-z0-9][a-z0-9._-]*==\S+)", text, flags=re.MULTILINE))

    assert pins("installer") < pins("dev")
    assert pins("base") < pins("train") < pins("dev")


def test_locks_satisfy_the_declared_dependencies() -> None:
    project = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    train = [*project["dependencies"], *extras["train"], *extras["report"]]
    for name, declared in {"base": project["dependencies"], "train": train, "dev": [*train, *extras["dev"]]}.items():
        text = _text(ROOT / "requirements" / f"{name}.lock")
        locked = dict(re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)", text, flags=re.MULTILINE))
        for requirement in map(Requirement, declared):
            version = locked.get(requirement.name)
            assert version, f"{name}.lock lacks {requirement.name}; run `make lock`"
            assert requirement.specifier.contains(version), f"{name}.lock: {requirement} is locked at {version}"


def test_version_is_stated_once_and_has_a_changelog_entry() -> None:
    declared = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]["version"]
    in_package = re.search(r'^__version__ = "(.+)"$', _text(PACKAGE / "__init__.py"), flags=re.MULTILINE)
    assert in_package is None or in_package.group(1) == declared
    assert f"## [{declared}]" in _text(ROOT / "CHANGELOG.md")


def test_relative_links_in_documents_lead_somewhere() -> None:
    documents = [path for path in _written_files() if path.suffix == ".md"]
    broken = [
        f"{_relative(path)}: {target}"
        for path in documents
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", _text(path))
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


def test_every_exit_code_has_a_section_in_the_operations_manual() -> None:
    manual = _text(ROOT / "OPERATIONS.md")
    codes = {
        int(node.value.value)
        for node in ast.walk(_tree(PACKAGE / "errors.py"))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and any(isinstance(target, ast.Name) and target.id == "exit_code" for target in node.targets)
    }
    assert codes
    assert {code for code in codes if not re.search(rf"^### {code}\b", manual, flags=re.MULTILINE)} == set()


def test_offline_tiers_cannot_reach_another_machine() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as outgoing,
        pytest.raises(pytest.fail.Exception, match="offline"),
    ):
        outgoing.connect(("192.0.2.1", 9))
    with pytest.raises(pytest.fail.Exception, match="offline"):
        socket.getaddrinfo("name.invalid", 80)


def test_offline_tiers_may_talk_to_themselves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), timeout=5):
        pass
