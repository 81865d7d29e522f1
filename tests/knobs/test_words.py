from autotune.knobs.words import changed_settings, settings_words, value_words


def test_values_are_written_as_a_space_file_has_them():
    values = (True, False, None, 500_000_000, 0.5, 1e-5, "full")
    assert [value_words(value) for value in values] == [
        "true", "false", "null", "500_000_000", "0.5", "1e-05", "full",
    ]  # fmt: skip


def test_settings_keep_their_order():
    assert settings_words({"b": 1_000, "a": True}) == "b=1_000, a=true"
    assert settings_words({}) == ""


def test_only_what_the_baseline_has_otherwise_is_changed():
    baseline = {"micro_batch": 1, "overlap_comm": True, "prefetch": 5}
    settings = {"micro_batch": 2, "overlap_comm": True, "extra": None}
    assert changed_settings(settings, baseline) == {"micro_batch": 2, "extra": None}
