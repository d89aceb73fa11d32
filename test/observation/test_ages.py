from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashrt_ros.observation.ages import (
    APPLIED,
    EXPIRED,
    FATES,
    PENDING,
    SKIPPED,
    SUPERSEDED,
    AgeJoiner,
    AgeWindow,
    ChunkRecord,
    percentiles,
)
from flashrt_ros.observation.timeline import AgeTerms, Timeline

MS = 1_000_000
PERIOD = 10 * MS


def chunk(chunk_id: int, capture_ms: int, horizon: int = 10, latency_ms: int = 15) -> ChunkRecord:
    capture = capture_ms * MS
    publish = capture + latency_ms * MS
    return ChunkRecord(
        chunk_id=chunk_id,
        timeline=Timeline(
            capture, capture + 4 * MS, capture + 5 * MS, capture + 6 * MS, publish - MS, publish
        ),
        planned_start_ns=capture,
        period_ns=PERIOD,
        horizon=horizon,
        first_valid_index=-(-latency_ms // 10),
    )


@given(st.lists(st.integers(0, 10**18), min_size=7, max_size=7))
def test_terms_sum_to_the_age_to_the_nanosecond(stamps):
    capture, *rest, apply = sorted(stamps)
    timeline = Timeline(capture, *rest)
    terms = timeline.terms(apply)
    assert terms.age_ns == apply - capture
    assert min(terms.input_ns, terms.queue_ns, terms.infer_ns, terms.output_ns, terms.wait_ns) >= 0


def test_measured_fates():
    joiner = AgeJoiner(grace_ns=0)
    joiner.add_chunk(chunk(1, 100))
    for index in (2, 3, 4):
        age = joiner.add_applied(1, index, (100 + 10 * index + 1) * MS)
        assert age.measured
        assert age.terms.age_ns == (10 * index + 1) * MS
    joiner.add_chunk(chunk(2, 140))
    joiner.add_applied(2, 2, 161 * MS)
    joiner.settle(10_000 * MS)
    # Chunk 1: 0, 1 were past; 5 was due at 150 and nobody applied it; 6 to 9 gave way to chunk 2 at 161.
    # Chunk 2: 0, 1 past; 2 applied; 3 to 9 were never applied and nothing newer came.
    assert joiner.fates() == {APPLIED: 4, SUPERSEDED: 4, EXPIRED: 1 + 7, SKIPPED: 4, PENDING: 0}


def test_actions_too_old_to_be_applied_have_no_planned_age():
    joiner = AgeJoiner(grace_ns=0)
    joiner.add_chunk(replace(chunk(1, 100), end_index=8))
    ages = joiner.settle(10_000 * MS)
    assert [age.action_index for age in ages] == [2, 3, 4, 5, 6, 7]
    assert joiner.fates() == {APPLIED: 6, SUPERSEDED: 0, EXPIRED: 2, SKIPPED: 2, PENDING: 0}


def test_planned_ages_where_nobody_reports():
    joiner = AgeJoiner(grace_ns=0)
    joiner.add_chunk(chunk(1, 100))
    joiner.add_chunk(chunk(2, 140))
    ages = joiner.settle(10_000 * MS)
    assert not any(age.measured for age in ages)
    first = [age.action_index for age in ages if age.chunk_id == 1]
    assert first == [2, 3, 4, 5], "until the second chunk's first action at 160 ms"
    assert [age.action_index for age in ages if age.chunk_id == 2] == list(range(2, 10))
    assert joiner.fates()[SKIPPED] == 4


def test_report_before_its_chunk_is_joined_later():
    joiner = AgeJoiner()
    assert joiner.add_applied(7, 3, 500 * MS) is None
    (age,) = joiner.add_chunk(chunk(7, 450))
    assert age.terms.age_ns == 50 * MS


def test_reports_that_cannot_be_joined_are_counted():
    joiner = AgeJoiner(orphan_limit=1)
    joiner.add_chunk(chunk(1, 0))
    joiner.add_applied(1, 2, 20 * MS)
    assert joiner.add_applied(1, 2, 21 * MS) is None
    assert joiner.add_applied(1, 10, 21 * MS) is None
    joiner.add_applied(8, 0, MS)
    joiner.add_applied(9, 0, MS)
    joiner.finish()
    assert joiner.refused == {"repeated": 1, "index_out_of_range": 1, "unknown_chunk": 2}


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9), st.integers(0, 400)), max_size=40),
    st.lists(st.integers(0, 300), min_size=6, max_size=6),
    st.integers(0, 600),
)
def test_every_action_has_exactly_one_fate(reports, captures, settle_ms):
    joiner = AgeJoiner(grace_ns=20 * MS)
    for chunk_id, capture_ms in enumerate(sorted(captures), start=1):
        joiner.add_chunk(chunk(chunk_id, capture_ms))
        assert sum(joiner.fates().values()) == 10 * chunk_id
    for chunk_id, index, at_ms in reports:
        joiner.add_applied(chunk_id, index, at_ms * MS)
    joiner.settle(settle_ms * MS)
    assert sum(joiner.fates().values()) == 60
    joiner.finish()
    assert sum(joiner.fates().values()) == 60
    assert joiner.fates()[PENDING] == 0
    assert tuple(joiner.fates()) == FATES


def test_policy_that_restarts_counts_from_one_again():
    joiner = AgeJoiner(grace_ns=0)
    joiner.add_chunk(chunk(1, 100))
    joiner.add_applied(1, 2, 121 * MS)
    joiner.add_chunk(chunk(1, 140))
    joiner.add_applied(1, 2, 161 * MS)
    assert sum(joiner.fates().values()) == 20
    joiner.finish()
    fates = joiner.fates()
    assert (fates[APPLIED], fates[SKIPPED], sum(fates.values())) == (2, 4, 20)
    assert not joiner.refused["repeated"]


def test_window_percentiles_equal_numpy():
    random = np.random.default_rng(0)
    terms = [AgeTerms(*map(int, row)) for row in random.integers(0, 10**9, (500, 5))]
    found = percentiles(terms, [50, 99])
    ages = np.array([t.age_ns for t in terms])
    assert found.dtype == np.int64
    assert found[0, 0] == np.sort(ages)[249]
    assert found[1, 0] == np.sort(ages)[494]


def test_window_forgets():
    window = AgeWindow(100 * MS)
    joiner = AgeJoiner()
    joiner.add_chunk(chunk(1, 0, horizon=100))
    for index in range(2, 60):
        window.add(joiner.add_applied(1, index, index * PERIOD))
    assert len(window) == 11
    assert window.measured == 11
    window.trim(10_000 * MS)
    assert len(window) == 0
    assert not window.percentiles([50]).any()
