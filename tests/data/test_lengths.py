"""The pinned length distribution."""

import statistics

import pytest

from autotune.data.lengths import draw_lengths
from autotune.errors import InputError


def test_statistics_of_ultrachat_like():
    lengths = sorted(draw_lengths("ultrachat-like", num_samples=50_000, max_length=8192, seed=1))
    assert statistics.mean(lengths) == pytest.approx(1258, rel=0.01)
    assert lengths[25_000] == pytest.approx(1140, rel=0.01)
    assert lengths[47_500] == pytest.approx(2398, rel=0.015)
    assert lengths[0] >= 16
    assert lengths[-1] <= 8192


def test_packing_needs_36_percent_fewer_micro_batches_than_greedy_padding():
    lengths = draw_lengths("ultrachat-like", num_samples=20_000, max_length=8192, seed=2)
    padded, rows, longest = 1, 0, 0
    packed, filled = 1, 0
    for length in lengths:
        longest = max(longest, length)
        if (rows + 1) * longest > 8192:
            padded, rows, longest = padded + 1, 0, length
        rows += 1
        if filled + length > 8192:
            packed, filled = packed + 1, 0
        filled += length
    assert 1 - packed / padded == pytest.approx(0.36, abs=0.015)


def test_values_are_pinned_across_versions_and_machines():
    assert draw_lengths("ultrachat-like", num_samples=6, max_length=8192, seed=0) == (
        *(1793, 1558, 1039),
        *(850, 1151, 1020),
    )


def test_other_limits_scale():
    full = draw_lengths("ultrachat-like", num_samples=500, max_length=8192, seed=3)
    for max_length in (512, 1000, 32768):
        scaled = draw_lengths("ultrachat-like", num_samples=500, max_length=max_length, seed=3)
        assert max(scaled) <= max_length
        for one, two in zip(full, scaled, strict=True):
            assert two == pytest.approx(one * max_length / 8192, abs=1 + max_length / 8192)


def test_no_sample_is_shorter_than_two_tokens():
    assert set(draw_lengths("ultrachat-like", num_samples=50, max_length=2, seed=0)) == {2}
    with pytest.raises(InputError, match="at least 2 tokens"):
        draw_lengths("ultrachat-like", num_samples=1, max_length=1, seed=0)


def test_prefix_of_a_longer_stream_is_the_same_stream():
    short = draw_lengths("ultrachat-like", num_samples=10, max_length=512, seed=5)
    assert draw_lengths("ultrachat-like", num_samples=99, max_length=512, seed=5)[:10] == short
    assert draw_lengths("ultrachat-like", num_samples=10, max_length=512, seed=6) != short


def test_unknown_distribution_names_the_known_one():
    with pytest.raises(InputError, match="'gaussian'") as caught:
        draw_lengths("gaussian", num_samples=1, max_length=512, seed=0)
    assert "ultrachat-like" in caught.value.hint
