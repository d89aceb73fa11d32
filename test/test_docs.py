"""Every command of the documentation is run (`sh` blocks) or, where it needs ROS 2 tools, has its names looked up."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TUTORIAL = "tutorial.md"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def blocks(page, language):
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


WITH_COMMANDS = [page for page in PAGES if blocks(page, "sh")]


def run(page, folder):
    """All commands of a page, in one shell as a reader has it; what the last ones printed, and what went wrong."""
    script = "set -eo pipefail\n" + "".join(blocks(page, "sh"))
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        check=False,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder that looks like the checkout; what commands write stays in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.name not in (".git", "build", "runs"):
            (folder / path.name).symlink_to(path)
    (folder / "build").symlink_to(ROOT / os.environ.get("BUILD", "build"))
    return folder


@pytest.fixture(scope="module")
def tutorial(checkout):
    pytest.importorskip("rclpy", reason="ROS 2 is not installed: the tutorial runs its nodes")
    return run(TUTORIAL, checkout), checkout


@pytest.mark.graph
def test_tutorial_does_what_it_says(tutorial):
    ended, folder = tutorial
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for path in ("runs/demo/report.html", "runs/comparison/report.html", "runs/expert/report.html"):
        assert (folder / path).is_file()
    difference = ended.stdout.partition("=== slow minus demo [ms], 95 % intervals")[2]
    assert difference, ended.stdout
    input_ms = float(re.search(r"^input +([+-][\d.]+) \[", difference, re.MULTILINE).group(1))
    assert input_ms > 60, "the delay is found in the term input"
    assert "pi05/pi05_belt/float32" in (folder / "runs/demo/report.json").read_text()
    assert "pi05" not in (folder / "runs/expert/report.json").read_text()


@pytest.mark.graph
@pytest.mark.parametrize("page", [page for page in WITH_COMMANDS if page != TUTORIAL])
def test_commands_run(tutorial, page):
    """The pages after the tutorial use the runs that it has left."""
    _, folder = tutorial
    ended = run(page, folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr


ROS2 = [
    (page, line) for page in PAGES for block in blocks(page, "ros2") for line in block.splitlines()
]


@pytest.mark.parametrize(("page", "line"), ROS2)
def test_ros2_commands_name_what_exists(page, line):
    from flashrt_ros.control.parameters import NODES

    _, command, *words = shlex.split(line)
    assert line.startswith("ros2 ")
    if command == "launch":
        package, file, *arguments = words
        assert package == "flashrt_ros"
        text = (ROOT / "launch" / file).read_text()
        for included in re.findall(r'with_name\("([\w.]+)"\)', text):
            text += (ROOT / "launch" / included).read_text()
        declared = re.findall(r'DeclareLaunchArgument\(\s*"(\w+)"', text)
        assert {argument.partition(":=")[0] for argument in arguments} <= set(declared)
    elif command == "param":
        action, node, name, value = words
        assert action == "set"
        parameter = next(p for p in NODES[node.removeprefix("/")] if p.name == name)
        parameter.check(yaml.safe_load(value))
        assert parameter.live, "the page changes it while the node runs"
    else:
        assert (command, words[0]) == ("topic", "echo")
        node, _, topic = words[1].removeprefix("/").rpartition("/")
        source = (ROOT / f"flashrt_ros/nodes/{node or 'policy'}.py").read_text()
        assert f'"~/{topic}"' in source or f'"{words[1]}"' in source


def test_every_command_is_in_a_block_that_is_tested():
    for page in PAGES:
        languages = set(re.findall(r"^```(\w+)", (DOCS / page).read_text(), re.MULTILINE))
        assert languages <= {"sh", "ros2"}, page


def links(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    return [(page, target) for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", text)]


@pytest.mark.parametrize(
    ("page", "target"), sorted({link for page in PAGES for link in links(page)})
)
def test_links(page, target):
    assert ((DOCS / page).parent / target).exists()


def test_every_page_is_found_from_the_first():
    found, todo = set(), ["README.md"]
    while todo:
        page = todo.pop()
        found.add(page)
        for _, target in links(page):
            path = ((DOCS / page).parent / target).resolve()
            if path.suffix == ".md" and DOCS in path.parents:
                name = str(path.relative_to(DOCS))
                todo += [name] if name not in found else []
    assert found == set(PAGES)
