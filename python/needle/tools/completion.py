"""Scripts by which shells complete the command ``needle``.

The options are those that ``needle COMMAND --help`` lists, so no command has to name them twice.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Mapping

_BASH = """\
_needle() {
    local word="${COMP_WORDS[COMP_CWORD]}"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "%(commands)s --help --version" -- "$word"))
        return
    fi
    case "${COMP_WORDS[1]}" in
%(cases)s
    esac
    [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- "$word"))
}
complete -o filenames -F _needle needle
"""


def options(command: Callable[[list[str]], int]) -> list[str]:
    """Return the options that a command's help lists."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        command(["--help"])
    lines = [line for line in said.getvalue().splitlines() if re.match(r" +-", line)]
    found = re.findall(r"(?<![\w-])--[a-z][a-z-]*", "\n".join(lines))
    return sorted({*found, "--help"})


def script(
    shell: str, commands: Mapping[str, Callable[[list[str]], int]], recipes: Iterable[str]
) -> str:
    """Return the script for a shell: "bash", "zsh" or "fish".

    Args:
        shell: the shell.
        commands: what carries out each command.
        recipes: names to complete after ``needle train``.
    """
    known = {name: options(command) for name, command in commands.items()}
    names = list(recipes)
    if shell == "fish":
        return _fish(known, names)
    after = {"train": names, "torture": names, "completion": ["bash", "zsh", "fish"]}
    cases = [
        f'        {name}) COMPREPLY=($(compgen -W "{" ".join([*after.get(name, []), *found])}"'
        ' -- "$word")) ;;'
        for name, found in known.items()
    ]
    text = _BASH % {"commands": " ".join(known), "cases": "\n".join(cases)}
    return text if shell == "bash" else "autoload -U +X bashcompinit && bashcompinit\n" + text


def _fish(known: Mapping[str, list[str]], recipes: Iterable[str]) -> str:
    first = "__fish_use_subcommand"
    lines = [f"complete -c needle -n {first} -f -a {name}" for name in known]
    for name, found in known.items():
        where = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c needle {where} -l {option[2:]}" for option in found]
    for name in ("train", "torture"):
        where = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c needle {where} -f -a {recipe}" for recipe in recipes]
    where = "-n '__fish_seen_subcommand_from completion'"
    lines.append(f"complete -c needle {where} -f -a 'bash zsh fish'")
    return "\n".join(lines) + "\n"
