"""Commands of README, docs/, --help and of messages: what can be told without running them."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rn50.cli.main import app
from rn50.config.load import load
from tests.cli.test_everywhere import leaves
from tests.rooms import sources
from tests.test_docs import PAGES

PRESETS = {path.stem for path in (Path(__file__).parents[2] / "config").glob("*.yaml")}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
COMMAND = re.compile(
    r"^(?:\$ )?(?:RN50_HOSTS=hosts |srun \S+ |sudo .* -- )?rn50 (.*)", re.M
)


def words_of(command: str) -> list[str]:
    """The arguments of `rn50`, up to a comment, a pipe or what the reader is to add."""
    arguments = []
    for argument in shlex.split(command, comments=True):
        if argument == "..." or argument[0] in "|>":
            break
        arguments.append(argument)
    return arguments


def leaf(arguments: list[str]) -> Any:
    """The command that `words` begin with, reading its own arguments."""
    command: Any = typer.main.get_command(app)
    context: Any = None
    while hasattr(command, "get_command"):
        context = command.make_context("rn50", arguments[:1], parent=context)
        named = command.get_command(context, arguments[0])
        command = named or command.get_command(context, "run")  # rn50 predict
        if named:
            arguments = arguments[1:]
    return command.make_context(command.name, arguments, parent=context)


def commands_of_pages() -> Iterator[Any]:
    for page in PAGES:
        for language, fence in FENCE.findall(page.read_text()):
            if language not in ("", "bash", "text"):
                continue
            lines = fence.replace("\\\n", " ").replace(
                "./run_and_time.sh", "rn50 launch"
            )
            for command in COMMAND.findall(lines):
                if command.split()[0] != "--help":
                    yield pytest.param(words_of(command), id=f"{page.stem}: {command}")


def understand(arguments: list[str]) -> None:
    """Read a command, and the preset that it names with its overrides."""
    params = leaf(arguments).params
    # which changes more than it is told
    if params.get("config") in PRESETS and arguments[0] != "bench":
        load(params["config"], params.get("overrides") or [])


@pytest.mark.parametrize("arguments", list(commands_of_pages()))
def test_a_command_of_a_page_is_understood(arguments: list[str]) -> None:
    understand(arguments)


def test_every_command_has_an_example_that_it_understands() -> None:
    for name, command in leaves(typer.main.get_command(app)):
        examples = re.findall(r"Example: `(?:[^`]*? )?rn50 (.*?)`", command.help, re.S)
        assert examples, name
        for example in examples:
            arguments = words_of(example.replace("\n", " "))
            assert leaf(arguments).command.name == command.name


def spelt(node: ast.AST) -> str:
    """A string of the sources as it may be printed: what is put in is a word."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(spelt, node.values))
    return "X"


def commands_of_messages() -> Iterator[str]:
    """The commands in backquotes, or spelt as a list. Docstrings are read too."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            elements = map(spelt, getattr(node, "elts", []))
            texts = re.findall("`([^`]*)`", spelt(node).replace("\n", " "))
            for command in (" ".join(elements), *texts):
                if re.match("rn50 [a-z]", command):
                    yield command


def test_the_commands_of_messages_are_understood() -> None:
    """Prose may name a command without its arguments."""
    commands = set(commands_of_messages())
    assert "rn50 launch X" in commands
    assert len(commands) > 50
    for command in commands:
        try:
            leaf(words_of(command)[1:])
        except Exception as error:
            wrong = ("AttributeError", "NoSuchOption", "UsageError")
            assert type(error).__name__ not in wrong, command
