"""Writes what is made from source: config/policy.yaml, docs/parameters.md and docs/messages.md.

    python3 tools/make_reference.py [FOLDER]     default: this checkout

A test fails when they lag behind.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def load_parameters():  # noqa: ANN201 - a module
    """The table of parameters, from the checkout and not from what is installed; it needs nothing else."""
    spec = importlib.util.spec_from_file_location(
        "flashrt_parameters", ROOT / "flashrt_ros/control/parameters.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def policy_yaml(parameters) -> str:  # noqa: ANN001 - a module
    """Every parameter of the two nodes that a robot needs, with its default and comment."""
    head = (
        "# Every parameter of the policy node and of its companion, with its default. Copy it, change what differs,\n"
        "# and give it to policy.launch.py as params_file. Made by tools/make_reference.py.\n"
    )
    return head + parameters.yaml_text("policy") + parameters.yaml_text("age_logger")


def parameters_page(parameters) -> str:  # noqa: ANN001 - a module
    """The tables of all nodes."""
    parts = [
        "# Parameters\n",
        "Made by tools/make_reference.py from `flashrt_ros/control/parameters.py`. Live parameters take effect while "
        "the node runs;\nthe others at the next configure, or at the next start. An integer is taken for a "
        "double; what is out of range is\nrefused with the range.\n",
    ]
    for node in parameters.NODES:
        parts += [f"## {node}\n", parameters.markdown_table(node)]
    return "\n".join(parts)


def messages_page() -> str:
    """The message files as they are."""
    parts = ["# Messages\n", "Made by tools/make_reference.py from `msg/`.\n"]
    for path in sorted((ROOT / "msg").glob("*.msg")):
        text = re.sub(r"\n{3,}", "\n\n", path.read_text(encoding="utf-8").strip())
        parts.append(f"## {path.stem}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Text by path in the tree."""
    parameters = load_parameters()
    return {
        "config/policy.yaml": policy_yaml(parameters),
        "docs/parameters.md": parameters_page(parameters),
        "docs/messages.md": messages_page(),
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
