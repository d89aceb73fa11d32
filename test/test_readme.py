"""The one-liners of the README print what it says they print; the files that it links to exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def one_liners():
    (block,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for entry in block.split("$ ")[1:]:
        command, _, output = entry.partition("\n")
        yield command, output


@pytest.mark.parametrize(("command", "output"), list(one_liners()))
def test_one_liner(command, output, tmp_path):
    program, *arguments = shlex.split(command)
    assert program == "python"
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (ended.stdout, ended.stderr) == (output, "")


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links(target):
    assert (ROOT / target).exists()


def test_commands_exist():
    told = subprocess.run(
        [sys.executable, "-m", "flashrt_ros.cli", "--help"],
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
    ).stdout
    for command in set(re.findall(r"^\s*flashrt (\w+)", README, re.MULTILINE)):
        assert command in told
