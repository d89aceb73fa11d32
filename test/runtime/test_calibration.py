"""Calibration data: chosen evenly, written whole, and refused for anything they were not taken of."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[bags]'")

from flashrt_ros.cli import main
from flashrt_ros.control.robot import find_robot, load_robot
from flashrt_ros.offline.calibrate import Candidate, calibrate, choose
from flashrt_ros.runtime.calibration import CalibrationError, CalibrationKey, load_calibration

from ..offline.bags import PERIOD_NS, REPLAYED, T0, TINY, BagWriter, make_bag, write_drive

ROBOT = load_robot(find_robot("so101"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Calibration data of two recordings with three instructions, and what was told of them."""
    root = tmp_path_factory.mktemp("calibration")
    first = root / "first"
    with BagWriter(first) as writer:
        for start, text in ((0, "wipe"), (20, "fold")):
            message = writer.make("std_msgs/msg/String", data=text)
            record_ns = T0 + start * PERIOD_NS
            writer.write("/policy/instruction", "std_msgs/msg/String", record_ns, message)
            write_drive(writer, frames=20, start=start)
    second = make_bag(root / "second", "sqlite3", frames=3, start=100)
    parameters = REPLAYED | {"instruction": ""}
    told = calibrate([first, second], root / "data", parameters, 8)
    return root / "data", told


@pytest.fixture
def key(made):
    content = json.loads((made[0] / "calibration.json").read_text())
    return CalibrationKey(
        content["weights_sha256"], content["contract_sha256"], content["settings"]
    )


def test_data_say_what_they_are_of(made, key):
    folder, told = made
    weights = (TINY / "model.safetensors").read_bytes()
    assert key.weights_sha256 == hashlib.sha256(weights).hexdigest()
    assert key.contract_sha256 == ROBOT.sha256
    assert (key.settings["precision"], key.settings["steps"]) == ("float32", 1)
    assert told["observations"] == 8
    assert told["by_instruction"] == {"wipe": 4, "fold": 4}
    data = load_calibration(folder, key)
    assert [sample.instruction for sample in data.samples] == 4 * ["wipe"] + 4 * ["fold"]
    frames = [round((sample.stamp_ns - T0) / PERIOD_NS) for sample in data.samples]
    assert frames == [2, 7, 12, 17, 22, 27, 32, 37], "evenly over the time of each instruction"
    for sample in data.samples:
        assert {view.shape for view in sample.views.values()} == {(32, 32, 3)}
        assert set(sample.views) == {camera.feature for camera in ROBOT.cameras}
        assert sample.state.shape == (6,)
    assert len(data.ranges) == told["products"]
    for name, found in data.ranges.items():
        largest = float(np.max(data.channel_largest[name]))
        assert largest == found["largest"] == max(abs(found["lowest"]), abs(found["highest"]))
        assert 0 < found["rms"] <= found["largest"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"weights_sha256": "0" * 64}, f"weights_sha256: expected {'0' * 64}, found "),
        ({"contract_sha256": "1" * 64}, f"contract_sha256: expected {'1' * 64}, found "),
        (
            {"settings": {"precision": "bfloat16"}},
            "precision: expected 'bfloat16', found 'float32'",
        ),
        ({"settings": {"steps": 10}}, "setting steps: expected 10, found 1"),
    ],
)
def test_data_of_something_else_are_refused(made, key, change, told):
    if "settings" in change:
        change = {"settings": {**key.settings, **change["settings"]}}
    with pytest.raises(CalibrationError) as error:
        load_calibration(made[0], dataclasses.replace(key, **change))
    assert told in str(error.value)
    assert "calibrate again with `flashrt calibrate`" in str(error.value)


def test_another_robot_has_another_contract(tmp_path):
    text = find_robot("so101").read_text()
    (tmp_path / "same.yaml").write_text("# another comment\n" + text)
    (tmp_path / "other.yaml").write_text(text.replace("upper: 1.92", "upper: 1.93"))
    assert load_robot(tmp_path / "same.yaml").sha256 == ROBOT.sha256
    assert load_robot(tmp_path / "other.yaml").sha256 != ROBOT.sha256


@pytest.mark.parametrize("name", ["observations.safetensors", "channels.safetensors"])
def test_damaged_data_are_refused(made, key, tmp_path, name):
    copy = shutil.copytree(made[0], tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[-10] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(CalibrationError, match=f"{name}: damaged"):
        load_calibration(copy, key)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}'])
def test_what_is_no_calibration_is_refused(tmp_path, key, text):
    (tmp_path / "calibration.json").write_text(text)
    with pytest.raises(CalibrationError, match=r"calibration\.json"):
        load_calibration(tmp_path, key)


def test_nothing_is_overwritten(made, tmp_path, capsys):
    bag = make_bag(tmp_path / "bag", frames=2)
    command = ["calibrate", str(bag), "--out", str(made[0]), "--checkpoint", str(TINY)]
    command += ["--instruction", "wipe", "-p", "steps:=1", "--observations", "1"]
    assert main(command) == 1
    assert "holds calibration data already" in capsys.readouterr().err


def test_without_instruction_or_network_it_says_so(tmp_path):
    bag = make_bag(tmp_path / "bag", frames=2)
    with pytest.raises(CalibrationError, match="give one with --instruction"):
        calibrate([bag], tmp_path / "out", REPLAYED | {"instruction": ""}, 4)
    expert = {"checkpoint": "expert", "instruction": "touch the red block"}
    with pytest.raises(CalibrationError, match="expected a network, found the scripted expert"):
        calibrate([bag], tmp_path / "out", expert, 4)


def test_the_small_network_that_comes_along_can_be_calibrated_by_its_name(tmp_path):
    bag = make_bag(tmp_path / "bag", frames=2)
    parameters = {"checkpoint": "pi05_belt", "instruction": "touch the red block", "steps": 1}
    assert calibrate([bag], tmp_path / "out", parameters, 1)["observations"] == 1


def test_rare_instructions_count_as_much_as_they_can(tmp_path):
    names = ["common"] * 100 + ["rare"] * 2 + ["other"] * 10
    candidates = [Candidate(tmp_path, number, name) for number, name in enumerate(names)]
    chosen = [candidate.instruction for candidate in choose(candidates, 21)]
    assert [chosen.count(name) for name in ("common", "rare", "other")] == [9, 2, 10]
    assert len(choose(candidates, 1000)) == len(candidates)
    assert choose([], 5) == []
