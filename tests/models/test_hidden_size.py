"""BUG-060: where the hidden size stands, in every kind of configuration."""

import pytest

from autotune.errors import InputError
from autotune.models.hidden_size import hidden_size


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hidden_size": 64}, (64, "hidden_size")),
        ({"text_config": {"hidden_size": 32}}, (32, "text_config.hidden_size")),
        ({"hidden_size": 64, "text_config": {"hidden_size": 32}}, (64, "hidden_size")),
        ({"hidden_sizes": [16, 48, 24]}, (48, "the largest of hidden_sizes")),
        ({"text_config": {"hidden_sizes": [8, 9]}}, (9, "the largest of text_config.hidden_sizes")),
        ({"hidden_size": None, "hidden_sizes": [16]}, (16, "the largest of hidden_sizes")),
    ],
)
def test_hidden_size_and_its_source(config, expected):
    assert hidden_size(config) == expected


@pytest.mark.parametrize("config", [{}, {"hidden_sizes": []}, {"text_config": {"depth": 3}}])
def test_none_at_all_asks_for_the_three_numbers(config):
    with pytest.raises(InputError, match="no hidden_size") as caught:
        hidden_size(config)
    for key in (
        "reduce_bucket_size",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
    ):
        assert key in caught.value.hint
