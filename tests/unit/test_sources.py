"""Rules over the sources that no linter knows: who writes SQL on operations, how tests wait, what files hold.

It reads the checkout and imports nothing of it. Each rule has a test that plants a violation and sees it.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CODE: Final = ("relay", "consumers", "bench", "examples")
MIGRATIONS: Final = ROOT / "schemas" / "postgres"

# The relay's own tables and the consumers' inbox; every other table of the migrations belongs to operations.
NOT_OPERATIONS: Final = frozenset(
    {
        "outbox",
        "source_identity",
        "parked_event",
        "pruning",
        "prune_batch",
        "event_delivery",
        "schema_migration",
    }
)
OPERATIONS_SQL: Final = (Path("consumers/operations"), Path("schemas/postgres"))

LINE_LIMIT: Final = 400
LONGER: Final[dict[str, str]] = {
    "relay/pipeline.py": "the whole path from WAL to Kafka is read in this one file",
    "tests/integration/test_provider_submit.py": "every way in which one POST can go wrong, in one list",
    "schemas/postgres/0017_money_and_batches.sql": "money and batches share one lock order",
    "schemas/postgres/0005_guards.sql": "one trigger function per forbidden act, read side by side",
}

# These wait on behalf of the tests, between looks at something that nobody announces.
MAY_PAUSE: Final = frozenset({"tests/fix_waiting.py", "tests/kafka/apache_kafka.py"})

MACHINE_PATH: Final = re.compile(r"(?<![\w.])/(?:root|Users|work|home/(?!relay\b)\w+|opt/wheels)/")
TEXT_SUFFIXES: Final = frozenset(
    {".py", ".sql", ".md", ".toml", ".yml", ".yaml", ".avsc", ".lock", ".xml", ".txt", ".json", ".cfg", ".sh"}
)
TEXT_NAMES: Final = frozenset({"Makefile", "Dockerfile", "run", ".gitignore", ".dockerignore"})


def _python(folders: Iterable[str]) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _operations_tables() -> frozenset[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(MIGRATIONS.glob("*.sql")))
    tables = re.findall(r"create\s+table\s+(?:if\s+not\s+exists\s+)?relay\.(\w+)", text, re.IGNORECASE)
    return frozenset(tables) - NOT_OPERATIONS


TABLES: Final = _operations_tables()


# SQL on operations ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Literal:
    """A string of a Python source; what an f-string or a `+` fills in reads as ``{}``."""

    line: int
    text: str


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.Constant(value=bytes() as data):
            return data.decode("utf-8", errors="replace")
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "{}" for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text(left) or "{}") + (_text(right) or "{}")
        case ast.Call(func=ast.Attribute(value=pattern, attr="format" | "join")):
            return _text(pattern)
        case _:
            return None


def literals(source: str) -> Iterator[Literal]:
    """The strings of a Python source, docstrings left out; parts that are put together come as one."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.expr) and (text := _text(node)) is not None:
            yield Literal(node.lineno, text)
            if isinstance(node, ast.Constant):
                continue
        todo.extend(ast.iter_child_nodes(node))


_STATEMENT: Final = re.compile(
    r"^[\s(]*(?:--.*\n\s*)*(?:with|select|insert|update|delete|merge|copy|lock|truncate|create|alter|drop|"
    r"explain|declare|grant|revoke|comment|refresh|do|set|values|from|join|where|and|left|inner|exists)\b",
    re.IGNORECASE,
)
_QUALIFIED: Final = re.compile(r'"?\brelay"?\s*\.\s*"?(\w+)"?(?!\s*[\w(])', re.IGNORECASE)
_AFTER_KEYWORD: Final = re.compile(
    r'\b(?:from|join|into|update|table|only|using|copy|truncate|lock|references|on)\s+"?(\w+)"?(?!\s*[.(])\b',
    re.IGNORECASE,
)
_IN_LIST: Final = re.compile(r'\bfrom\s+[\w\s".]+?,\s*"?(\w+)"?', re.IGNORECASE)


def tables_named(text: str) -> set[str]:
    """The operations tables that a text names as SQL does."""
    named = {match.group(1) for match in _QUALIFIED.finditer(text)}
    if _STATEMENT.match(text):
        named |= {match.group(1) for match in _AFTER_KEYWORD.finditer(text)}
        named |= {match.group(1) for match in _IN_LIST.finditer(text)}
    return {name.lower() for name in named} & TABLES


def identifiers_named(source: str) -> Iterator[tuple[int, str]]:
    """`sql.Identifier("relay", "operation")` names a table without any SQL around it."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "Identifier":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and argument.value in TABLES:
                    yield node.lineno, str(argument.value)


def violations(source: str) -> list[str]:
    """Where a Python source names an operations table in SQL, as ``line N: table``."""
    found = {(literal.line, table) for literal in literals(source) for table in tables_named(literal.text)}
    found |= set(identifiers_named(source))
    return [f"line {line}: {table}" for line, table in sorted(found)]


def _may_name_operations(path: Path) -> bool:
    return any(folder in path.relative_to(ROOT).parents for folder in OPERATIONS_SQL)


def test_the_migrations_make_the_tables_that_are_guarded() -> None:
    assert {"operation", "attempt", "remote_job", "journal", "ledger", "reservation", "review"} <= TABLES


@pytest.mark.parametrize("path", _python(CODE), ids=_name)
def test_no_python_outside_operations_names_an_operations_table(path: Path) -> None:
    if not _may_name_operations(path):
        assert violations(path.read_text(encoding="utf-8")) == []


def test_no_sql_file_outside_operations_names_an_operations_table() -> None:
    files = [path for folder in CODE for path in (ROOT / folder).rglob("*.sql")]
    named = {_name(path): tables_named("select " + path.read_text(encoding="utf-8")) for path in files}
    assert {
        name: found for name, found in named.items() if found and not _may_name_operations(ROOT / name)
    } == {}


@pytest.mark.parametrize(
    "planted",
    [
        'connection.execute("select * from relay.operation")',
        'connection.execute("SELECT phase FROM operation WHERE true")',
        'connection.execute("update operation set phase = %s")',
        'connection.execute(f"insert into {schema}.x select 1 from attempt a where {condition}")',
        'connection.execute("select 1 " + "from review")',
        'connection.execute(b"delete from ledger")',
        'connection.execute("select 1 from outbox, journal")',
        'connection.execute(\'truncate "relay"."output"\')',
        'connection.execute(sql.SQL("select 1 from {}").format(sql.Identifier("relay", "remote_job")))',
        'QUERY = """\n-- which\nwith due as (select 1 from reservation) select 1 from due"""',
        'CLAUSE = " join attempt on true"',
    ],
)
def test_a_planted_table_is_found(planted: str) -> None:
    assert violations(planted)


@pytest.mark.parametrize(
    "harmless",
    [
        'raise ValueError("Cost taken from operation 7 on review.")',
        'connection.execute("select 1 from relay.outbox")',
        'connection.execute("select * from relay.prepare_operation(kind => %s)")',
        'connection.execute("select relay.review_something()")',
        'TOPIC = "operation.transitioned"',
        '"""A docstring may say: select from relay.operation."""',
        'HELP = "Show an operation, its attempts and its journal."',
    ],
)
def test_prose_and_other_tables_are_left_alone(harmless: str) -> None:
    assert violations(harmless) == []


# What applications call -------------------------------------------------------------------------------------


def other_than_the_function(source: str) -> list[str]:
    """The SQL of a source that does more than call `relay.prepare_operation`."""
    call = re.compile(r"select [\w, ]+ from relay\.prepare_operation\([^()]*\)", re.IGNORECASE)
    statements = [found.text for found in literals(source) if _STATEMENT.match(found.text)]
    return [text for text in statements if not call.fullmatch(text)]


def test_intent_only_calls_the_function() -> None:
    source = (ROOT / "relay/outbox/intent.py").read_text(encoding="utf-8")
    assert "relay.prepare_operation(" in source
    assert other_than_the_function(source) == []


@pytest.mark.parametrize(
    "planted",
    [
        'execute("insert into relay.outbox values (1)")',
        'execute("select a from relay.prepare_operation(x => %s); commit")',
        'execute("select a from relay.prepare_operation(x => (select 1))")',
        'execute("set local role relay_app")',
    ],
)
def test_more_than_the_call_is_found(planted: str) -> None:
    assert other_than_the_function(planted)


# How tests wait ---------------------------------------------------------------------------------------------


def sleeps(source: str) -> list[int]:
    """Lines that call a sleep for a time; `asyncio.sleep(0)` only yields and is none."""
    tree = ast.parse(source)
    bare = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "asyncio", "anyio"}
        for alias in node.names
        if alias.name == "sleep"
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time" | "asyncio" | "anyio"), attr="sleep")):
                pass
            case ast.Call(func=ast.Name(id=name)) if name in bare:
                pass
            case _:
                continue
        if not (len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", _python(["tests"]), ids=_name)
def test_no_test_sleeps_for_a_time(path: Path) -> None:
    if _name(path) not in MAY_PAUSE:
        assert sleeps(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("planted", "lines"),
    [
        ("import time\ntime.sleep(1)", [2]),
        ("from time import sleep as rest\nrest(1)", [2]),
        ("import asyncio\nasync def f():\n  await asyncio.sleep(0.1)\n  await asyncio.sleep(0)", [3]),
        ("import threading\nthreading.Event().wait(1)", []),
    ],
)
def test_a_planted_sleep_is_found(planted: str, lines: list[int]) -> None:
    assert sleeps(planted) == lines


# How files look ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", _python([*CODE, "tests"]), ids=_name)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if path.name == "__init__.py" and not source.strip():
        return
    assert ast.get_docstring(ast.parse(source)), f"{_name(path)} has no sentence at its top"


def test_a_module_that_calls_itself_pure_is_held_to_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [each for each in project["tool"]["importlinter"]["contracts"] if each["id"] == "pure"]
    claims = {
        _name(path).removesuffix(".py").replace("/", ".")
        for path in _python(["relay", "consumers"])
        if re.search(r"\bpure\b|\bdoes no I/O\b", _docstring(path), re.IGNORECASE)
    }
    assert claims - set(contract["source_modules"]) == set()


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _sources() -> list[Path]:
    sql = [path for folder in (*CODE, "schemas") for path in (ROOT / folder).rglob("*.sql")]
    return _python([*CODE, "tests"]) + sorted(sql)


def test_a_long_file_is_two_ideas_or_says_why() -> None:
    lines = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in _sources()}
    too_long = {name: count for name, count in lines.items() if count > LINE_LIMIT and name not in LONGER}
    assert too_long == {}


def test_the_list_of_long_files_is_true() -> None:
    short = [
        name
        for name in LONGER
        if not (ROOT / name).exists()
        or len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= LINE_LIMIT
    ]
    assert short == []


def _texts() -> list[Path]:
    folders = [*CODE, "tests", "schemas", "docs", ".ci"]
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    return sorted(path for path in found if path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES)


def test_no_file_names_a_path_of_one_machine() -> None:
    # This file would find its own pattern and its own plants.
    here = Path(__file__).resolve()
    found = [
        f"{_name(path)}: {match.group()}"
        for path in _texts()
        if path != here and "__pycache__" not in path.parts
        for match in MACHINE_PATH.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_planted_path_is_found() -> None:
    assert MACHINE_PATH.search("cd /root/project")
    assert MACHINE_PATH.search('Path("/home/somebody/x")')
    assert not MACHINE_PATH.search("https://host/work/item and /var/lib/relay/spool")
