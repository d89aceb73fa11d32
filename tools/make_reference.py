"""Writes what is made from source: config/policy.yaml, docs/parameters.md, docs/messages.md and docs/cli.md.

    python3 tools/make_reference.py [FOLDER]     default: this checkout

A test fails when they lag behind.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the checkout, and not what is installed

from flashrt_ros.cli import build_parser  # noqa: E402
from flashrt_ros.control.parameter_reference import markdown_table, yaml_text  # noqa: E402
from flashrt_ros.control.parameters import NODES  # noqa: E402


def policy_yaml() -> str:
    """Every parameter of the two nodes that a robot needs, with its default and comment."""
    head = (
        "# Every parameter of the policy node and of its companion, with its default. Copy it, change what differs,\n"
        "# and give it to policy.launch.py as params_file. Made by tools/make_reference.py.\n"
    )
    return head + yaml_text("policy") + yaml_text("age_logger")


def parameters_page() -> str:
    """The tables of all nodes."""
    parts = [
        "# Parameters\n",
        "Made by tools/make_reference.py from `flashrt_ros/control/parameters.py`. Live parameters take effect while "
        "the node runs;\nthe others at the next configure, or at the next start. An integer is taken for a "
        "double; what is out of range is\nrefused with the range.\n",
    ]
    for node in NODES:
        parts += [f"## {node}\n", markdown_table(node)]
    return "\n".join(parts)


def messages_page() -> str:
    """The message files as they are."""
    parts = ["# Messages\n", "Made by tools/make_reference.py from `msg/`.\n"]
    for path in sorted((ROOT / "msg").glob("*.msg")):
        text = re.sub(r"\n{3,}", "\n\n", path.read_text(encoding="utf-8").strip())
        parts.append(f"## {path.stem}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


def cli_page() -> str:
    """A section for each subcommand of `flashrt`."""
    parts = [
        "# The flashrt command\n",
        "Made by tools/make_reference.py from `flashrt_ros/cli.py`. Every command ends with exit code 0, 1 after an "
        "error that is\ntold in one line, or 2 for a wrong usage. `flashrt COMMAND --help` says the same.\n",
    ]
    (commands,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    for choice in commands._choices_actions:
        parser = commands.choices[choice.dest]
        given = [action for action in parser._actions if action.dest != "help"]
        positional = [_argument_name(action) for action in given if not action.option_strings]
        usage = " ".join(["flashrt", choice.dest, *positional, "[options]"])
        parts += [f"## flashrt {choice.dest}\n", f"{choice.help[0].upper()}{choice.help[1:]}.\n"]
        parts += [f"```\n{usage}\n```\n", "| argument | default | meaning |\n|---|---|---|"]
        parts += [_argument_row(action) for action in given]
        parts.append("")
    return "\n".join(parts)


def _argument_name(action: argparse.Action) -> str:
    name = action.metavar or action.dest
    return f"{name} [{name} …]" if action.nargs == "+" and not action.option_strings else name


def _argument_row(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or _argument_name(action)
    if action.option_strings and action.nargs != 0:
        name += f" {action.metavar or action.dest.upper()}" if not action.choices else ""
    silent = action.default is None or action.nargs == 0 or action.default in ([], "")
    default = "" if silent else f"`{action.default}`"
    choices = " or ".join(f"`{choice}`" for choice in action.choices or ())
    meaning = "; ".join(filter(None, [action.help or "", choices]))
    return f"| `{name}` | {default} | {meaning} |"


def pages() -> dict[str, str]:
    """Text by path in the tree."""
    return {
        "config/policy.yaml": policy_yaml(),
        "docs/parameters.md": parameters_page(),
        "docs/messages.md": messages_page(),
        "docs/cli.md": cli_page(),
    }


def main() -> int:
    """Write all of them."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
