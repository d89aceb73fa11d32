"""What measurements hold for: the same sources are the same code wherever they lie."""

from pathlib import Path

from flashrt_ros.runtime.machine import code, sources_digest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "kernels/linear.py": "1",
    "runtime/plan.py": "2",
    "runtime/__init__.py": "3",
    "runtime/deep/__init__.py": "4",
}


def placed(sources, **folders):
    """The digest with each folder at its place."""
    for name, text in sources.items():
        folder, _, rest = name.partition("/")
        path = folders[folder] / rest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sources_digest([folders["runtime"], folders["kernels"]])


def test_a_checkout_and_an_installation_of_the_same_sources_are_the_same_code(tmp_path):
    def checkout(name, sources):
        root = tmp_path / name
        return placed(sources, kernels=root / "kernels", runtime=root / "package" / "runtime")

    package = tmp_path / "site-packages" / "package"
    installed = placed(SOURCES, kernels=package / "kernels", runtime=package / "runtime")
    assert checkout("same", SOURCES) == installed
    (package / "runtime" / "plan.cpython-310.pyc").write_text("not a source")
    assert sources_digest([package / "runtime", package / "kernels"]) == installed
    edited = SOURCES | {"kernels/linear.py": "2"}
    swapped = SOURCES | {"runtime/__init__.py": "4", "runtime/deep/__init__.py": "3"}
    assert len({installed, checkout("edited", edited), checkout("swapped", swapped)}) == 3


def test_the_code_is_that_of_runtime_and_kernels():
    assert code() == sources_digest([ROOT / "kernels", ROOT / "flashrt_ros" / "runtime"])
