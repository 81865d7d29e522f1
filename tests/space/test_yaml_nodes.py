from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import SpaceError
from autotune.space.nodes import MAX_BYTES, Items, Node, Scalar, Table, compose, decode


def table(text: str) -> Table:
    node = compose(text, "f.yaml")
    assert isinstance(node, Table)
    return node


def text_at(node: Node | None, *path: str) -> str:
    for key in path:
        assert isinstance(node, Table)
        node = node.get(key)
    assert isinstance(node, Scalar)
    return node.text


def fault(text: str | bytes) -> str:
    with pytest.raises(SpaceError) as caught:
        compose(decode(text, "f.yaml") if isinstance(text, bytes) else text, "f.yaml")
    return str(caught.value)


def test_a_duplicate_key_names_both_lines_in_block_form() -> None:
    """BUG-003"""
    assert fault("p:\n  a: 1\n  b: 2\n  a: 3\n") == (
        "f.yaml:4:3: the key 'a' stands twice: line 2 and line 4"
    )


def test_a_duplicate_key_is_refused_in_flow_form() -> None:
    """BUG-003"""
    assert fault("p: {low: 1, low: 2}") == (
        "f.yaml:1:13: the key 'low' stands twice: line 1 and line 1"
    )


def test_overriding_a_merged_key_is_no_duplicate() -> None:
    """BUG-003"""
    root = table("x-b: &b {type: int, low: 1, high: 9}\nbucket: {<<: *b, high: 5}")
    assert text_at(root, "bucket", "low") == "1"
    assert text_at(root, "bucket", "high") == "5"
    before = table("x-b: &b {low: 1, high: 9}\nbucket: {high: 5, <<: *b}")
    assert text_at(before, "bucket", "high") == "5"


def test_of_merged_anchors_the_earlier_wins() -> None:
    """BUG-003"""
    root = table("a: &a {low: 1}\nb: &b {low: 2, high: 3}\nc: {<<: [*a, *b]}")
    assert text_at(root, "c", "low") == "1"
    assert text_at(root, "c", "high") == "3"


def test_a_quoted_merge_sign_is_an_ordinary_key() -> None:
    assert list(table("'<<': 1").entries) == ["<<"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1", r"f.yaml:1:6: this is not YAML"),
        ("a: 'x", r"f.yaml:1:6: this is not YAML"),
        ("a:\n\tb: 1", r"f.yaml:2:1: this is not YAML"),
        ("a: 1\n b: 2", r"f.yaml:2:3: this is not YAML"),
        ("a: b: c", r"f.yaml:1:5: this is not YAML"),
        ("a: 1\n---\nb: 2", r"f.yaml:2:1: a second document"),
        ("a: &x [*x]", r"f.yaml:1:8: the alias \*x stands inside"),
        ("a: *q", r"f.yaml:1:4: the alias \*q has no anchor"),
        ("<<: 3", r"f.yaml:1:1: << merges mappings only"),
        ("<<: {a: 1}\n<<: {b: 1}", r"f.yaml:2:1: the key '<<' stands twice"),
        ("? [1]\n: 2", r"f.yaml:1:3: a key must be a word"),
        ("'': 1", r"f.yaml:1:1: a key is empty"),
        ("a: \x07", r"f.yaml:1:4: the character U\+0007"),
        ("[" * 5000, r"f.yaml:1:41: .* 40 levels"),
        ("a: {" * 300, r" 40 levels"),
        ("a: !!int 3", r"f.yaml:1:4: the tag !!int"),
        ("a: !own 3", r"f.yaml:1:4: the tag !own"),
        ("a: !!set {x}", r"f.yaml:1:4: the tag !!set"),
        ("%YAML 3.0\n---\na: 1", r"f.yaml:1:1: this is not YAML"),
    ],
)
def test_what_a_space_file_may_not_have_is_refused_in_its_place(text: str, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        compose(text, "f.yaml")


def test_a_python_tag_is_named_and_does_nothing(tmp_path: Path) -> None:
    """BUG-068"""
    marker = tmp_path / "marker"
    for tag in ("python/object/apply:os.system", "python/object/new:os.system"):
        message = fault(f"version: 1\nx: !!{tag} ['touch {marker}']")
        assert message.startswith(f"f.yaml:2:4: the tag !!{tag} is refused")
    assert "!!python/name:os.system" in fault("x: !<tag:yaml.org,2002:python/name:os.system> y")
    assert not marker.exists()


def test_an_alias_bomb_stops_at_the_stated_limit() -> None:
    """BUG-068"""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    message = fault("\n".join(lines))
    assert "more than 20,000 values" in message
    assert message.startswith("f.yaml:5:")


def test_merge_bombs_are_bounded_too() -> None:
    """BUG-068"""
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 40)]
    assert "20,000 values" in fault("\n".join(lines))


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_nothing_composes_to_nothing(text: str) -> None:
    assert compose(text, "f.yaml") is None


def test_bom_and_windows_line_ends_are_read() -> None:
    raw = "\ufeffa: 1\r\nb:\r\n  c: 2\r\n".encode()
    node = compose(decode(raw, "f.yaml"), "f.yaml")
    assert isinstance(node, Table)
    assert text_at(node, "b", "c") == "2"
    assert node.entries["b"].value.place.line == 3


def test_other_encodings_are_refused_in_their_place() -> None:
    assert fault(b"a: 1\nb: \xe4") == "f.yaml:2:4: byte 0xe4 is not UTF-8"
    assert fault("a: 1".encode("utf-16")).startswith("f.yaml:1:1: byte 0xff is not UTF-8")


def test_a_file_beyond_the_limit_is_refused() -> None:
    assert "larger than 262,144 bytes" in fault(b"#" * (MAX_BYTES + 1))


def test_scalars_know_quotes_and_columns() -> None:
    root = table('a: "x y"\nb: x y\nc: |\n  x y\nd: !!str 5')
    quoted, plain, block, tagged = (root.get(key) for key in "abcd")
    assert isinstance(quoted, Scalar)
    assert isinstance(plain, Scalar)
    assert isinstance(block, Scalar)
    assert isinstance(tagged, Scalar)
    assert (quoted.quoted, plain.quoted, block.quoted, tagged.quoted) == (True, False, True, True)
    assert quoted.place_of(2).column == 7
    assert plain.place_of(2).column == 6
    assert block.place_of(2) == block.place


def test_lists_keep_their_order() -> None:
    node = table("a: [3, 1, 2]").get("a")
    assert isinstance(node, Items)
    assert [item.text for item in node.items if isinstance(item, Scalar)] == ["3", "1", "2"]


@given(st.text(alphabet="ab:-[]{},&*!|>'\"#%?@ \n\t<1", max_size=60))
def test_any_text_composes_or_is_a_space_error(text: str) -> None:
    # Any other exception fails the test.
    with contextlib.suppress(SpaceError):
        compose(text, "f.yaml")


@pytest.mark.parametrize("escape", ["\\0", "\\ud800"])
def test_what_no_argument_and_no_file_name_can_hold_is_refused(escape: str) -> None:
    assert fault(f'p: [a, "b{escape}"]') == (
        "f.yaml:1:8: the character NUL, or half of a surrogate pair, cannot be given to a program"
    )
