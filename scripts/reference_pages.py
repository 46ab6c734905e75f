"""Pages of the reference that are made from the code when the site is built, and are not committed.

    python scripts/reference_pages.py commands      every command of `hushrec` and `hushrec-server`, from its help
    python scripts/reference_pages.py names         every class, function, event and error of the SDK
    python scripts/reference_pages.py parameters    recipes, mechanisms, schedule and training settings
    python scripts/reference_pages.py problems      the types of problem documents
    python scripts/reference_pages.py settings      the environment variables of a server

Each prints one page as Markdown. `mkdocs_hooks.py` adds all of them to the site, and the page of signatures.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

import names_page
import parameters_page
import typer.main
from pydantic import BaseModel

import aggregator_service.cli
import client_sdk.cli
from aggregator_service.settings import Settings
from client_sdk.errors import PROBLEM_ERRORS
from protocols.messages.base import PROBLEM_TYPES, problem_uri

_COMMANDS: Final = """\
# Commands

`hushrec` is for participants, `hushrec-server` for operators. This page is made from their help: `--help` after any
command prints the same. [Configuration](configuration.md#commands) says what holds for all of them.
"""

_PROBLEMS: Final = """\
# Problem types

Every error answer of the HTTP API is a problem document (RFC 9457). Its member `type` is one of these URIs; they are
names, not addresses to open. [HTTP API](http-api.md#errors) says what to do about those that need more than the title.
"""

_SETTINGS: Final = """\
# Settings of a server

Each setting of `hushrec-server` is an environment variable. Those with an option of `serve` can be set by it, too: an
option overrides the variable. [Configuration](configuration.md#settings) says which pages explain them.
"""


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the words and the command object of every command of both programs."""
    for program, app in (("hushrec", client_sdk.cli.app), ("hushrec-server", aggregator_service.cli.app)):
        yield from _leaves(program, typer.main.get_command(app))


def _leaves(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield words, command
        return
    for name in command.list_commands(None):
        yield from _leaves(f"{words} {name}", command.get_command(None, name))


def commands_page() -> str:
    """Return the page of all commands: help, arguments and options of each."""
    parts, program = [_COMMANDS], ""
    for words, command in commands():
        if words.split()[0] != program:
            program = words.split()[0]
            parts.append(f"## {program}")
        parts += [f"### {words}", _help(command), *_table_of(command)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _help(command: Any) -> str:
    """Return the help as Markdown: paragraphs, and the example as a block."""
    text, *examples = inspect.cleandoc(command.help or "").replace("\b", "").split("Example: ")
    shown = "\n".join(" ".join(example.split()).replace("; ", "\n") for example in examples)
    return f"{_escaped(text.strip())}\n\n```sh\n{shown}\n```"


def _table_of(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]
        meaning = _escaped(" ".join((getattr(parameter, "help", None) or "").split()))
        rows.append(f"| {', '.join(f'`{name}`' for name in names)} | {_default(parameter)} | {meaning} |")
    return ["\n".join(["| option or argument | default | meaning |", "|---|---|---|", *rows])] if rows else []


def _default(parameter: Any) -> str:
    """Return the default as the help shows it; nothing where the help text itself names it."""
    if parameter.required:
        return "required"
    shown = getattr(parameter, "show_default", True)
    if isinstance(shown, str):
        return _escaped(shown)
    default = parameter.default
    if shown is False or default is None or isinstance(default, bool) or callable(default) or default in ((), []):
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def problems_page() -> str:
    """Return the page of problem types: URI, status, title, and the exception that the SDK raises."""
    rows = ["| type | status | title | the SDK raises |", "|---|---|---|---|"]
    for slug, (status, title) in sorted(PROBLEM_TYPES.items(), key=lambda one: (one[1][0], one[0])):
        rows.append(f"| `{problem_uri(slug)}` | {status} | {title} | `{PROBLEM_ERRORS[slug].__name__}` |")
    return f"{_PROBLEMS}\n" + "\n".join(rows) + "\n"


def settings_page() -> str:
    """Return the page of settings: variable, option of `serve`, default and meaning."""
    serve = next(command for words, command in commands() if words == "hushrec-server serve")
    options = {parameter.name: f"`{parameter.opts[0]}`" for parameter in serve.params}
    meanings = _field_texts(Settings)
    rows = ["| variable | option | default | meaning |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, "", ()) else f"`{_shown(field.default)}`"
        meaning = _escaped(meanings[name])
        rows.append(f"| `HUSHREC_{name.upper()}` | {options.get(name, '')} | {default} | {meaning} |")
    return f"{_SETTINGS}\n" + "\n".join(rows) + "\n"


def _field_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field, from the source: the server would read it at every start."""
    definition: Any = ast.parse(inspect.getsource(model)).body[0]
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
    }


def _shown(default: object) -> str:
    """Return a default as one writes it into the environment."""
    return "{}" if isinstance(default, BaseModel) else str(int(default) if isinstance(default, bool) else default)


PAGES: Final[dict[str, Callable[[], str]]] = {
    "cli.md": commands_page,
    "parameters.md": parameters_page.page,
    "problems.md": problems_page,
    "reference/api.md": names_page.signatures,
    "reference/names.md": names_page.names,
    "settings.md": settings_page,
}
"""Page of the site -> what makes its text."""

_NAMES: Final = {
    "commands": "cli.md",
    "names": "reference/names.md",
    "parameters": "parameters.md",
    "problems": "problems.md",
    "settings": "settings.md",
}


def main(arguments: list[str]) -> int:
    """Print the page that `arguments` name; 2 for any other arguments."""
    if len(arguments) != 1 or arguments[0] not in _NAMES:
        print(__doc__, file=sys.stderr)
        return 2
    print(PAGES[_NAMES[arguments[0]]](), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
