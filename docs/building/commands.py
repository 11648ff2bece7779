"""The reference of the command line, read from its parsers: every verb with its usage, words and options.

Own code, because the parsers say everything already, and the extensions for Sphinx that read them need another package
for what takes a screen here.
"""

import argparse
import re
from collections.abc import Iterator

from fedgmr.cli.main import make_parser


def command_reference(parser: argparse.ArgumentParser | None = None) -> str:
    """Markdown: a section per verb of `fedgmr`, or of another parser, and below it a section per verb of a verb."""
    return "\n".join(_verbs(parser or make_parser(), "##"))


def _verbs(parser: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, verb in action.choices.items():
                yield from _section(verb, heading, words.get(name, ""))


def _section(verb: argparse.ArgumentParser, heading: str, words: str) -> Iterator[str]:
    yield f"{heading} `{verb.prog}`\n"
    yield f"{_sentence(verb.description or words)}\n"
    actions = [action for action in verb._actions if not isinstance(action, argparse._HelpAction)]
    yield f"```text\n{_usage(verb, actions)}\n```\n"
    rows = [action for action in actions if not isinstance(action, argparse._SubParsersAction)]
    if rows:
        yield "| word | meaning |\n|---|---|"
        yield from (f"| {_name(action)} | {_cell(action.help or '')} |" for action in rows)
        yield ""
    yield from _verbs(verb, f"{heading}#")


def _usage(verb: argparse.ArgumentParser, actions: list[argparse.Action]) -> str:
    parts = [verb.prog]
    for action in actions:
        value = "" if action.nargs == 0 else f" {_value(action)}"
        if isinstance(action, argparse._SubParsersAction):
            parts.append(str(action.metavar))
        elif action.option_strings:
            option = f"{action.option_strings[-1]}{value}"
            parts.append(option if action.required else f"[{option}]")
        else:
            forms = {"*": "[{} ...]", "+": "{} ...", "?": "[{}]"}
            parts.append(forms.get(str(action.nargs), "{}").format(value.strip()))
    lines = [""]
    for part in parts:
        if len(lines[-1]) + len(part) > 80:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {part}"
    return "\n".join(lines).strip()


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        return action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _name(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {_value(action)}"
    names = [f"{name}{value}" for name in action.option_strings] or [value.strip()]
    return ", ".join(f"`{name}`".replace("|", "\\|") for name in names)


def _cell(text: str) -> str:
    words = re.sub(r"(?<![\w`-])--?[a-z][\w-]*(?![^`]*`)", r"`\g<0>`", " ".join(text.replace("%%", "%").split()))
    return words.replace("|", "\\|")


def _sentence(text: str) -> str:
    text = _cell(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
