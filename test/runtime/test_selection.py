"""Selection on a real engine: right and faster is adopted, and nothing else is."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flashrt_ros.cli import main
from flashrt_ros.control import policies
from flashrt_ros.runtime.bench import select_and_keep
from flashrt_ros.runtime.build import RuntimeSetupError, build_engine, operators_for
from flashrt_ros.runtime.engine import FlowEngine
from flashrt_ros.runtime.selection import (
    SelectionError,
    check,
    load_verdicts,
    relative_l2,
    save_verdicts,
    select,
    table,
    verdicts_path,
    wall_clock,
)
from flashrt_ros.runtime.settings import EngineSettings
from flashrt_ros.runtime.trial import (
    EngineTrial,
    expected_chunks,
    make_samples,
    selection_fingerprint,
)

from .engines import policy_of
from .planted import PlantedOperators, operations

CAMERAS = {"base_0_rgb": (48, 64), "left_wrist_0_rgb": (56, 56)}
SETTINGS = EngineSettings(cameras=CAMERAS)


def trial_of(policy):
    engine = FlowEngine(policy, SETTINGS, make_operators=PlantedOperators)
    return engine, EngineTrial(engine, make_samples(policy, CAMERAS), steps=2)


@pytest.fixture(scope="module")
def selected():
    policy = policy_of("openpi_pi05")
    engine, trial = trial_of(policy)
    expected, bound = expected_chunks(policy, make_samples(policy, CAMERAS), 2)
    told = []
    verdicts = select(
        trial,
        fingerprint=selection_fingerprint(policy, SETTINGS),
        chunk_bound=bound,
        expected=expected,
        timer=operations,
        pairs=4,
        progress=told.append,
    )
    return engine, verdicts, told


def test_each_planted_candidate_meets_its_verdict(selected):
    _, verdicts, told = selected
    found = {(v.site, v.candidate): v for v in verdicts.verdicts}
    outcomes = {name: v.outcome for (site, name), v in found.items() if site == "head"}
    assert outcomes == {
        "reference": "reference",
        "wrong": "wrong",
        "not_a_number": "wrong",
        "narrow": "wrong",
        "slow": "slow",
        "same": "slow",
        "unsteady": "wrong",
        "failing": "failed",
        "lean": "slow",
        "leaner": "adopted",
    }
    reasons = {name: v.reason for (site, name), v in found.items() if site == "head"}
    assert reasons["wrong"] == reasons["not_a_number"] == "site beyond its bound"
    assert reasons["narrow"] == "chunk beyond its bound"
    assert reasons["unsteady"] == "another chunk each time"
    assert reasons["failing"] == "RuntimeError: planted: no such instruction on this GPU"
    assert reasons["lean"] == "leaner is faster still"
    assert found["head", "wrong"].error == pytest.approx(0.01, rel=1e-3)
    assert found["head", "wrong"].ratio is None
    assert found["head", "narrow"].error <= 1e-4 < found["head", "narrow"].chunk_error
    assert found["head", "slow"].ratio.low > 1.0
    assert found["head", "same"].ratio.median == 1.0
    assert found["head", "leaner"].ratio.high < 1.0
    assert found["tail", "slow"].outcome == "slow"
    assert told[0] == "head: wrong (1 of 9)"
    assert told[-2:] == ["tail: slow (1 of 1)", "tail: stays with reference, site 2 of 2"]
    assert len(told) == len(found)  # a reference is not tried, and each site ends with a line


def test_what_was_adopted_is_in_use(selected):
    engine, verdicts, _ = selected
    assert verdicts.choices() == {"head": "leaner", "tail": "reference"}
    assert engine.operators.choices() == verdicts.choices()


def test_a_reference_beyond_the_bound_selects_nothing():
    _, trial = trial_of(policy_of("openpi_pi05"))
    wrong = [2.0 * chunk for chunk in trial.chunks()]
    with pytest.raises(SelectionError, match="the reference's own chunk"):
        select(trial, fingerprint={}, chunk_bound=1e-3, expected=wrong, timer=operations)


def test_verdicts_are_kept_while_their_fingerprint_holds(selected, tmp_path, monkeypatch):
    _, verdicts, _ = selected
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fingerprint = verdicts.fingerprint
    path = verdicts_path(fingerprint)
    assert tmp_path in path.parents
    with pytest.raises(SelectionError, match="no verdicts for this machine"):
        load_verdicts(path, fingerprint)
    save_verdicts(path, verdicts)
    assert load_verdicts(path, fingerprint).verdicts == verdicts.verdicts
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    other = {**fingerprint, "device": "another GPU"}
    assert verdicts_path(other) != path
    with pytest.raises(SelectionError, match="device: expected another GPU, found "):
        load_verdicts(path, other)
    path.write_text(path.read_text()[:100])
    with pytest.raises(SelectionError, match="expected verdicts as JSON"):
        load_verdicts(path, fingerprint)
    path.write_text(json.dumps({"format": 0, "fingerprint": {}}))
    with pytest.raises(SelectionError, match="format: expected 1, found 0"):
        load_verdicts(path, fingerprint)


def test_verdicts_hold_for_the_same_candidates_only(selected):
    engine, verdicts, _ = selected
    check(verdicts, engine.operators.sites())
    fewer = dataclasses.replace(verdicts, verdicts=verdicts.verdicts[1:])
    with pytest.raises(SelectionError, match=r"without one for \[\('head', 'reference'\)\]"):
        check(fewer, engine.operators.sites())
    with pytest.raises(SelectionError, match=r"for nothing \[\('tail', 'reference'\)"):
        check(verdicts, engine.operators.sites()[:1])


def test_verdicts_of_a_selection_that_was_interrupted_hold_and_the_next_goes_on(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    policy, told = policy_of("openpi_pi05"), []
    fingerprint = selection_fingerprint(policy, SETTINGS)
    path = verdicts_path(fingerprint)

    def interrupted(text):
        told.append(text)
        if "tail: slow" in text:
            raise KeyboardInterrupt

    def select_again(progress):
        told.clear()
        return select_and_keep(trial_of(policy)[0], 2, progress=progress, timer=operations)

    def kept():
        return load_verdicts(path, fingerprint)

    with pytest.raises(KeyboardInterrupt):
        select_again(interrupted)
    part = kept()
    assert part.choices() == {"head": "leaner"}
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    engine = build_engine(policy, SETTINGS, make_operators=PlantedOperators, progress=told.append)
    assert engine.operators.choices() == {"head": "leaner", "tail": "reference"}
    assert "the selection was interrupted, no verdicts yet for tail" in told

    select_again(told.append)
    assert not any("head" in text for text in told)
    whole = kept()
    assert whole.choices() == {"head": "leaner", "tail": "reference"}
    assert whole.verdicts[: len(part.verdicts)] == part.verdicts

    with pytest.raises(KeyboardInterrupt):
        select_again(interrupted)
    assert any("head: leaner" in text for text in told)  # what is whole is judged anew
    assert kept() == whole


def test_an_engine_is_built_with_the_verdicts_that_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def build(policy, **options):
        told = []
        engine = build_engine(
            policy,
            dataclasses.replace(SETTINGS, flows=((1, 1.0),)),
            make_operators=PlantedOperators,
            timer=operations,
            pairs=2,
            progress=told.append,
            **options,
        )
        return engine.operators.choices(), told

    reference = {"head": "reference", "tail": "reference"}
    chosen = {"head": "leaner", "tail": "reference"}
    policy = policy_of("openpi_pi05")
    choices, told = build(policy)
    assert choices == reference
    assert any("no verdicts for this machine" in line for line in told)
    choices, told = build(policy, selection="now")
    assert choices == chosen
    assert any(line.startswith("selecting: head: leaner") for line in told)
    for selection in ("verdicts", "now"):
        choices, told = build(policy, selection=selection)
        assert choices == chosen
        assert told == []
    assert build(policy, selection="off")[0] == reference
    assert build(policy_of("openpi_pi05", "bfloat16"))[0] == reference


def test_fused_kernels_are_refused_where_there_is_no_gpu():
    cpu = torch.device("cpu")
    assert operators_for("auto", cpu) == operators_for("reference", cpu)
    with pytest.raises(RuntimeSetupError, match="need a CUDA device, found 'cpu'"):
        operators_for("fused", cpu)


def test_the_fingerprint_tells_networks_and_shapes_apart():
    one = selection_fingerprint(policy_of("openpi_pi05"), SETTINGS)
    assert one == selection_fingerprint(policy_of("openpi_pi05"), SETTINGS)
    others = [
        selection_fingerprint(policy_of("openpi_pi0"), SETTINGS),
        selection_fingerprint(policy_of("openpi_pi05", "bfloat16"), SETTINGS),
        selection_fingerprint(
            policy_of("openpi_pi05"), dataclasses.replace(SETTINGS, cameras={"base_0_rgb": (9, 9)})
        ),
    ]
    assert len({json.dumps(f, sort_keys=True) for f in [one, *others]}) == 4
    assert one["device"]
    assert one["torch"] == torch.__version__


def test_the_table_fits_a_terminal(selected):
    _, verdicts, _ = selected
    lines = table(verdicts).splitlines()
    assert lines[0].split() == ["site", "candidate", "error", "chunk", "ratio", "verdict"]
    assert max(map(len, lines[: 2 + len(verdicts.verdicts)])) <= 80
    assert any(line.split()[:2] == ["head", "leaner"] and "adopted" in line for line in lines)


def test_the_bound_of_bfloat16_comes_from_the_plain_network():
    policy = policy_of("openpi_pi05", "bfloat16")
    samples = make_samples(policy, CAMERAS)
    expected, bound = expected_chunks(policy, samples, 2)
    engine = FlowEngine(policy, SETTINGS)
    error = max(
        relative_l2(chunk, e)
        for chunk, e in zip(EngineTrial(engine, samples, 2).chunks(), expected, strict=True)
    )
    assert 0.0 < error <= bound < 0.1


def test_relative_l2_of_what_is_not_finite_or_zero():
    zero, one = torch.zeros(3), torch.ones(3)
    assert relative_l2(one * 1.5, one) == 0.5
    assert relative_l2(one * float("nan"), one) == np.inf
    assert relative_l2(zero, zero) == 0.0
    assert relative_l2(one, zero) == np.inf
    with pytest.raises(ValueError, match=r"expected a result of \[3\], found \[2\]"):
        relative_l2(one[:2], one)


def test_the_wall_clock_runs_the_call():
    ran = []
    assert wall_clock(lambda: ran.append(1)) > 0.0
    assert ran == [1]


def test_bench_keeps_the_verdicts_that_it_prints(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    policy = policy_of("openpi_pi05")
    engine, _ = trial_of(policy)
    text = select_and_keep(engine, 2, tmp_path / "copy.json", timer=operations)
    path = verdicts_path(selection_fingerprint(policy, SETTINGS))
    assert text.endswith(f"kept in {path}")
    kept = load_verdicts(path, selection_fingerprint(policy, SETTINGS))
    assert kept.choices() == engine.operators.choices()
    assert json.loads((tmp_path / "copy.json").read_text())["chunk_bound"] == kept.chunk_bound
    plain = FlowEngine(policy, SETTINGS)
    assert "nothing to select" in select_and_keep(plain, 2)


def test_the_command_tells_of_each_site_as_it_goes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine, _ = trial_of(policy_of("openpi_pi05"))
    monkeypatch.setattr(policies, "CheckpointPolicy", lambda *_: SimpleNamespace(engine=engine))
    assert main(["bench", "--select", "--pairs", "1", "anywhere"]) == 0
    printed = capsys.readouterr()
    told = [line for line in printed.err.splitlines() if "stays with" in line]
    assert [line.split()[1] for line in told] == ["head:", "tail:"]
    assert all(line.endswith(f"site {n} of 2") for n, line in enumerate(told, start=1))
    assert "stays with" not in printed.out
