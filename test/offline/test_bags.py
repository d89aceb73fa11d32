"""Recordings whole and broken: each trouble is one clear line, and what is usable is used."""

import shutil

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[bags]'")

from flashrt_ros.cli import main
from flashrt_ros.control.robot import find_robot, load_robot
from flashrt_ros.offline.bag import Bag, BagError
from flashrt_ros.offline.bag_topics import find_topics
from flashrt_ros.offline.recorded_actions import RecordedActions
from flashrt_ros.offline.replay import ReplayError, ReplaySettings, replay

from .bags import IMAGE, JOINT_STATE, MS, PERIOD_NS, REPLAYED, T0, BagWriter, make_bag, write_drive

FRAMES = 12
MESSAGES = 3 * FRAMES
SO101 = load_robot(find_robot("so101"))
TOPICS = {"/overhead/image_raw", "/wrist/image_raw", "/joint_states"}


def everything(path):
    """Notes, and all messages as (topic, record time)."""
    with Bag(path) as bag:
        return bag.notes, [(topic, ns) for topic, ns, _ in bag.messages(set(bag.topics))]


def run(path, tmp_path, **settings):
    parameters = REPLAYED | settings.pop("parameters", {})
    return replay(ReplaySettings(path, tmp_path / "out", parameters, "5", **settings))


def one_line(error):
    assert len(str(error).splitlines()) == 1
    return str(error)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return everything(make_bag(tmp_path_factory.mktemp("whole") / "bag", frames=FRAMES))[1]


# ---------------------------------------------------------------- formats


@pytest.mark.parametrize(
    ("storage", "compression"),
    [
        ("mcap", ""),
        ("mcap", "storage"),
        ("mcap", "message"),
        ("mcap", "file"),
        ("sqlite3", ""),
        ("sqlite3", "message"),
        ("sqlite3", "file"),
    ],
)
@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "bare"])
def test_every_format_gives_the_same_messages(tmp_path, whole, storage, compression, metadata):
    path = make_bag(tmp_path / "bag", storage, compression, frames=FRAMES)
    if not metadata:
        (path / "metadata.yaml").unlink()
    notes, found = everything(path)
    assert found == whole
    assert len(notes) == (0 if metadata else 1)
    if not metadata:
        assert notes[0].startswith("metadata.yaml is missing: reading bag.")


def test_one_file_instead_of_its_folder(tmp_path, whole):
    path = make_bag(tmp_path / "bag", frames=FRAMES)
    assert everything(path / "bag.mcap") == ([], whole)


def test_lz4_file(tmp_path, whole):
    lz4 = pytest.importorskip("lz4.frame", reason="lz4 is not installed")
    path = make_bag(tmp_path / "bag", frames=FRAMES)
    (tmp_path / "bag.mcap.lz4").write_bytes(lz4.compress((path / "bag.mcap").read_bytes()))
    assert everything(tmp_path / "bag.mcap.lz4") == ([], whole)


def split(tmp_path, compression=""):
    """A bag in three files, as a recorder splits one by size."""
    folder = tmp_path / "split"
    folder.mkdir()
    names = []
    for part in range(3):
        made = make_bag(tmp_path / f"part{part}", "mcap", compression, frames=4, start=4 * part)
        names.append(f"split_{part}.mcap")
        shutil.move(made / f"part{part}.mcap", folder / names[-1])
    text = "rosbag2_bagfile_information:\n  relative_file_paths: [" + ", ".join(names) + "]\n"
    (folder / "metadata.yaml").write_text(text)
    return folder


def test_split_bag_is_one(tmp_path, whole):
    assert everything(split(tmp_path)) == ([], whole)


def test_split_bag_without_one_file(tmp_path, whole):
    folder = split(tmp_path)
    (folder / "split_1.mcap").unlink()
    notes, found = everything(folder)
    assert notes == ["split_1.mcap is missing, which metadata.yaml lists"]
    assert found == [message for message in whole if not 4 <= (message[1] - T0) // PERIOD_NS < 8]


def test_unusable_metadata_is_done_without(tmp_path, whole):
    path = make_bag(tmp_path / "bag", frames=FRAMES)
    (path / "metadata.yaml").write_text("{")
    notes, found = everything(path)
    assert found == whole
    assert len(notes) == 1
    assert "metadata.yaml cannot be used" in one_line(notes[0])


# ---------------------------------------------------------------- broken


def test_truncated_mcap_gives_what_is_whole(tmp_path):
    path = tmp_path / "bag"
    with BagWriter(path) as writer:
        for k in range(60):
            write_drive(writer, frames=1, start=k)
            for camera in ("overhead", "wrist"):
                stamp_ns = T0 + k * PERIOD_NS + 20 * MS
                writer.image(f"/{camera}/image_raw", stamp_ns, stamp_ns + MS, k, size=128)
    whole = everything(path)[1]
    file = path / "bag.mcap"
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * 0.7)])
    notes, found = everything(path)
    assert len(notes) == 1
    assert f"bag.mcap: cut off or without its index: {len(found)} messages over" in notes[0]
    assert 0.4 * len(whole) < len(found) < len(whole)
    assert found == whole[: len(found)]
    result = run(path, tmp_path)
    assert result["bag"]["notes"] == notes
    assert result["summary"]["chunks"] > 0


@pytest.mark.parametrize("size", [0, 5, 100])
@pytest.mark.parametrize("name", ["bag.mcap", "bag.db3"])
def test_stump_of_a_file(tmp_path, name, size):
    path = make_bag(tmp_path / "bag", {"mcap": "mcap", "db3": "sqlite3"}[name[4:]], frames=2)
    (path / name).write_bytes((path / name).read_bytes()[:size])
    with pytest.raises(BagError) as error:
        everything(path)
    assert name in one_line(error.value)


def test_corrupt_db3_gives_what_comes_before(tmp_path):
    path = make_bag(tmp_path / "bag", "sqlite3", frames=60)
    whole = everything(path)[1]
    file = path / "bag.db3"
    content = bytearray(file.read_bytes())
    middle = len(content) * 6 // 10
    content[middle : middle + 65536] = b"\xff" * 65536
    file.write_bytes(content)
    notes, found = everything(path)
    assert 90 < len(found) < 180
    assert set(found) < set(whole)
    assert notes == [f"bag.db3: damaged: {len(found)} messages over 2.0 s could be read"]


def test_damaged_chunk_is_named_and_the_other_files_are_read(tmp_path, whole):
    folder = split(tmp_path, "storage")
    file = folder / "split_1.mcap"
    content = bytearray(file.read_bytes())
    at = content.index(b"\x28\xb5\x2f\xfd")  # the beginning of what zstd wrote
    content[at : at + 200] = bytes(200)
    file.write_bytes(content)
    notes, found = everything(folder)
    assert len(notes) == 1
    assert one_line(notes[0]).startswith("split_1.mcap")
    others = [message for message in whole if not 4 <= (message[1] - T0) // PERIOD_NS < 8]
    assert set(others) <= set(found)


def test_unknown_compression(tmp_path):
    path = make_bag(tmp_path / "bag", compression="storage", frames=2)
    file = path / "bag.mcap"
    content = file.read_bytes()
    assert content.count(b"\x04\x00\x00\x00zstd") >= 2
    file.write_bytes(content.replace(b"\x04\x00\x00\x00zstd", b"\x04\x00\x00\x00zap9"))
    with pytest.raises((BagError, ReplayError)) as error:
        run(path, tmp_path)
    assert "zap9" in one_line(error.value)


def test_nothing_there(tmp_path):
    with pytest.raises(BagError, match="no such bag"):
        everything(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BagError, match=r"holds no \.mcap and no \.db3 file"):
        everything(tmp_path / "empty")
    with pytest.raises(BagError, match="holds no message"):
        everything(make_bag(tmp_path / "bag", frames=0))


def test_missing_topic_says_what_there_is(tmp_path):
    path = tmp_path / "bag"
    with BagWriter(path) as writer:
        for k in range(3):
            writer.image("/overhead/image_raw", T0 + k * PERIOD_NS, T0 + k * PERIOD_NS + MS, k)
            writer.joint_state("/joint_states", T0 + k * PERIOD_NS, T0 + k * PERIOD_NS, [0.0] * 6)
    with pytest.raises(BagError) as error:
        run(path, tmp_path)
    told = one_line(error.value)
    assert "no topic /wrist/image_raw (camera wrist, sensor_msgs/msg/Image)" in told
    assert "usable: overhead (3 messages), joint_states (3 messages)" in told


def test_wrong_type_is_named(tmp_path):
    path = tmp_path / "bag"
    with BagWriter(path) as writer:
        text = writer.make("std_msgs/msg/String", data="no picture")
        writer.write("/wrist/image_raw", "std_msgs/msg/String", T0, text)
        writer.image("/overhead/image_raw", T0, T0 + MS, 0)
        writer.joint_state("/joint_states", T0, T0, [0.0] * 6)
    with pytest.raises(BagError) as error:
        run(path, tmp_path)
    expected = (
        "/wrist/image_raw (camera wrist): expected sensor_msgs/msg/Image, found std_msgs/msg/String"
    )
    assert expected in one_line(error.value)


def test_message_that_is_not_its_type_is_skipped_and_counted(tmp_path):
    path = tmp_path / "bag"
    with BagWriter(path) as writer:
        write_drive(writer, frames=3)
        writer.write_raw("/wrist/image_raw", IMAGE, T0 + 200 * MS, b"\x00\x01\x00\x00abc")
        writer.write_raw("/joint_states", JOINT_STATE, T0 + 201 * MS, b"")
        write_drive(writer, frames=5, start=10)
    result = run(path, tmp_path)
    assert result["summary"]["chunks"] == 8
    assert result["bag"]["undecodable"] == {"/wrist/image_raw": 1, "/joint_states": 1}
    assert any("/wrist/image_raw: not a sensor_msgs/msg/Image" in n for n in result["bag"]["notes"])


def test_stamps_out_of_order_and_repeated_are_counted(tmp_path):
    path = tmp_path / "bag"
    with BagWriter(path) as writer:
        for k, shown in enumerate([0, 1, 2, 2, 5, 4, 6, 7]):
            record_ns = T0 + k * PERIOD_NS + 10 * MS
            stamp_ns = T0 + shown * PERIOD_NS - PERIOD_NS
            writer.joint_state("/joint_states", stamp_ns, record_ns, [0.0] * 6)
            writer.image("/overhead/image_raw", stamp_ns, record_ns + MS, k)
            writer.image("/wrist/image_raw", stamp_ns, record_ns + 2 * MS, k)
    summary = run(path, tmp_path)["summary"]
    for camera in ("overhead", "wrist"):
        fates = summary["cameras"][camera]
        assert fates["received"] == 8
        assert fates["rejected"] == {"duplicate_stamp": 1}
        assert fates["late"] == 1
        assert fates["unexplained"] == 0
    assert summary["chunks"] == 6


def two_robots(tmp_path):
    path = tmp_path / "two"
    with BagWriter(path) as writer:
        for k in range(4):
            for namespace in ("/left", "/right"):
                write_drive(writer, frames=1, namespace=namespace, start=k)
    return path


def test_two_robots_are_told_apart_by_namespace(tmp_path):
    path = two_robots(tmp_path)
    with pytest.raises(BagError) as error:
        run(path, tmp_path)
    assert "holds 2 robots: choose one with --namespace /left or /right" in one_line(error.value)
    result = run(path, tmp_path, namespace="/right")
    assert result["summary"]["chunks"] == 4
    assert result["bag"]["topics"]["joint_states"] == "/right/joint_states"


def test_one_robot_in_a_namespace_is_found(tmp_path):
    path = make_bag(tmp_path / "bag", frames=2, namespace="/cell3/arm")
    with Bag(path) as bag:
        topics = find_topics(bag, SO101)
        assert topics.namespace == "/cell3/arm"
        assert topics.cameras["wrist"] == "/cell3/arm/wrist/image_raw"
        assert bag.notes == ["topics found in namespace /cell3/arm"]


def test_command_tells_it_in_one_line(tmp_path, capsys):
    assert main(["replay", str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr()
    assert told.err == f"flashrt replay: {tmp_path / 'none'}: no such bag\n"
    assert told.out == ""


# ---------------------------------------------------------------- recorded actions


class Message:
    def __init__(self, **values):
        self.__dict__.update(values)


def stamp(ns):
    return Message(sec=ns // 10**9, nanosec=ns % 10**9)


def test_recorded_actions_are_ordered_by_name_and_linear_between():
    recorded = RecordedActions(["a", "b"], 100 * MS)
    for k in range(3):
        message = Message(
            header=Message(stamp=stamp(T0 + 30 * k * MS)), name=["b", "x", "a"], position=[k, 9, -k]
        )
        recorded.add("sensor_msgs/msg/JointState", message, 0)
    times = T0 + np.array([-1, 0, 45, 60, 61]) * MS
    found = recorded.at(times)
    assert np.array_equal(found[1:4], [[0, 0], [-1.5, 1.5], [-2, 2]])
    assert np.isnan(found[[0, 4]]).all()


def test_nothing_is_made_up_within_gaps():
    recorded = RecordedActions(["a"], 100 * MS)
    for ms in (0, 200, 250):
        message = Message(header=Message(stamp=stamp(T0 + ms * MS)), name=["a"], position=[1.0])
        recorded.add("sensor_msgs/msg/JointState", message, 0)
    assert np.isnan(recorded.at(T0 + np.array([100 * MS])))
    assert recorded.at(T0 + np.array([225 * MS])) == 1.0


def test_a_newer_trajectory_replaces_the_rest_of_the_one_before():
    recorded = RecordedActions(["a"], 100 * MS)
    for start_ms, value in ((0, 1.0), (50, 2.0)):
        points = [Message(positions=[value], time_from_start=stamp(30 * k * MS)) for k in range(4)]
        header = Message(stamp=stamp(T0 + start_ms * MS))
        message = Message(header=header, joint_names=["a"], points=points)
        recorded.add("trajectory_msgs/msg/JointTrajectory", message, 0)
    assert recorded.at(T0 + np.array([30, 60, 90, 140]) * MS)[:, 0].tolist() == [1.0, 2.0, 2.0, 2.0]


def test_message_without_a_joint_is_refused_and_counted():
    recorded = RecordedActions(["a", "b"], 100 * MS)
    message = Message(header=Message(stamp=stamp(T0)), name=["a"], position=[1.0])
    recorded.add("sensor_msgs/msg/JointState", message, 0)
    assert (len(recorded), recorded.refused) == (0, 1)
