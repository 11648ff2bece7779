"""Shell completion: the words that may follow on a command line, from a list that was written beforehand.

Nothing of the package but that list is loaded, so a press of Tab takes no longer than Python's own start.
`tools/write_words.py` writes it.
"""

import json
from importlib import resources
from typing import Any

# bash takes `=` for the end of a word, so it gets the whole line, and what stands after `=` alone.
BASH = """_fedgmr() {
    local IFS=$'\\n'
    COMPREPLY=($(fedgmr completion --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] ]]; then compopt -o nospace; fi
}
complete -o default -F _fedgmr fedgmr
"""


def read_words() -> dict[str, Any]:
    """The lists of verbs, options, recipe keys, and what `fedgmr list` prints."""
    text = resources.files("fedgmr.cli").joinpath("words.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def complete(line: str) -> list[str]:
    """The words that may stand where a line ends; none where a file may, which the shell completes itself."""
    known = read_words()
    *before, current = line.split(" ")
    node, last = known["command"], ""
    for last in filter(None, before[1:]):
        node = node["verbs"].get(last, node)
    values = node["options"].get(last, False)
    if values:
        found = values if isinstance(values, list) else []
    elif current.startswith("-"):
        found = list(node["options"])
    elif node["verbs"]:
        found = list(node["verbs"])
    elif "=" in current and node["keys"]:
        key, _, current = current.partition("=")
        found = known["keys"].get(key, [])
    else:
        found = list(node["words"])
        if node["recipe"]:
            found += known["list"]["Recipes"]
        if node["keys"]:
            found += _next_keys([*known["keys"], "output"], current)
    return [word for word in found if word.startswith(current)]


def _next_keys(keys: list[str], current: str) -> list[str]:
    """Recipe keys up to the next dot: `training.`, then `training.steps=`; `method` is both `method.` and `method=`."""
    return list(dict.fromkeys(_up_to_dot(key, len(current)) for key in keys if key.startswith(current)))


def _up_to_dot(key: str, start: int) -> str:
    dot = key.find(".", start)
    return f"{key}=" if dot < 0 else key[: dot + 1]
