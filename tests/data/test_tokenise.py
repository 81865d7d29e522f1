"""The user's own samples, tokenised with real tokenizers."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.contract.plan import Samples
from autotune.data import samples as samples_module
from autotune.data.samples import TokenRequest, make_samples
from autotune.data.tokenise import tokenise
from autotune.errors import EnvironmentFault, InputError

WORDS = ["<unk>", "<s>", "</s>", "user", "assistant", ":", *[f"w{i}" for i in range(90)]]
MARKED = (
    "{% for m in messages %}{{ m.role }} : "
    "{% if m.role == 'assistant' %}{%- generation -%}{{ m.content }} </s> {% endgeneration %}"
    "{% else %}{{ m.content }} {% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}"
STRICT = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Folders of word tokenizers: with a marked, a plain, a strict and no chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("tokenizers")
    for name, template in {"m": MARKED, "plain": PLAIN, "strict": STRICT, "none": None}.items():
        vocabulary = {word: number for number, word in enumerate(WORDS)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", chat_template=template
        )
        fast.save_pretrained(root / f"tok $({name});x")
    return {name: root / f"tok $({name});x" for name in ("m", "plain", "strict", "none")}


def request_of(tmp_path: Path, tokenizer: Path, lines: list[object], **changes) -> TokenRequest:
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fields = {
        "jsonl": str(path),
        "tokenizer": str(tokenizer),
        "max_length": 32,
        "seed": 0,
        "num_samples": len(lines),
        "vocab_size": 96,
        "token_file": str(tmp_path / "data" / "tokens.json"),
        "summary_file": str(tmp_path / "data" / "summary.json"),
    }
    return TokenRequest(**{**fields, **changes})


def tokens(request: TokenRequest) -> list[tuple[list[int], list[list[int]]]]:
    tokenise(request)
    entries = json.loads(Path(request.token_file).read_text())["samples"]
    return [(entry["ids"], entry["trained"]) for entry in entries]


def summary(request: TokenRequest) -> dict:
    return json.loads(Path(request.summary_file).read_text())


def chat(*contents: str) -> dict:
    roles = ("user", "assistant") * len(contents)
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


def test_marked_template_trains_on_the_assistants_tokens(tmp_path, tokenizers):
    line = chat("w1 w2", "w3", "w4", "w5 w6")
    ((found, trained),) = tokens(request_of(tmp_path, tokenizers["m"], [line]))
    assert found == ids("user : w1 w2 assistant : w3 </s> user : w4 assistant : w5 w6 </s>")
    assert trained == [[6, 8], [13, 16]]


def test_plain_template_trains_on_all_tokens(tmp_path, tokenizers):
    ((found, trained),) = tokens(request_of(tmp_path, tokenizers["plain"], [chat("w1 w2", "w3")]))
    assert found == ids("user : w1 w2 assistant : w3")
    assert trained == [[0, 7]]


def test_text_and_prompt_with_completion(tmp_path, tokenizers):
    (text,) = tokens(request_of(tmp_path, tokenizers["none"], [{"text": "w1 w2"}]))
    assert text == (ids("w1 w2 </s>"), [[0, 3]])
    line = {"prompt": "w1 w2", "completion": "w3"}
    (pair,) = tokens(request_of(tmp_path, tokenizers["none"], [line]))
    assert pair == (ids("w1 w2 w3 </s>"), [[2, 4]])


def test_order_comes_from_the_seed_and_every_sample_comes_once(tmp_path, tokenizers):
    lines = [{"text": f"w{i} w1"} for i in range(30)]
    first = tokens(request_of(tmp_path, tokenizers["none"], lines))
    again = tokens(request_of(tmp_path, tokenizers["none"], lines))
    other = tokens(request_of(tmp_path, tokenizers["none"], lines, seed=1))
    assert first == again != other
    assert (
        sorted(first)
        == sorted(other)
        == sorted((ids(f"{x['text']} </s>"), [[0, 3]]) for x in lines)
    )
    few = tokens(request_of(tmp_path, tokenizers["none"], lines, num_samples=5))
    assert few == first[:5]
    assert summary(request_of(tmp_path, tokenizers["none"], lines))["dataset_samples"] == 30


def test_long_samples_lose_their_end_and_are_counted(tmp_path, tokenizers):
    lines = [{"text": "w1 " * 40}, {"text": "w2 w3"}]
    request = request_of(tmp_path, tokenizers["none"], lines, max_length=10)
    found = tokens(request)
    assert sorted(len(sample) for sample, _ in found) == [3, 10]
    assert summary(request)["truncated"] == 1


def test_samples_with_nothing_to_train_on_are_passed_over(tmp_path, tokenizers):
    lines = [
        {"text": ""},
        {"prompt": "w1 " * 20, "completion": "w2"},
        {"text": "w5 w6"},
        chat("w1"),
        chat("w1", "w2"),
    ]
    request = request_of(tmp_path, tokenizers["m"], lines, num_samples=2, max_length=8)
    assert sorted(tokens(request)) == [
        (ids("user : w1 assistant : w2 </s>"), [[5, 7]]),
        (ids("w5 w6 </s>"), [[0, 3]]),
    ]
    request = request_of(tmp_path, tokenizers["m"], lines, num_samples=3, max_length=8)
    with pytest.raises(InputError, match="only 2 of 5 samples have a token to train on"):
        tokenise(request)


def test_too_few_samples_says_how_many_are_needed(tmp_path, tokenizers):
    request = request_of(tmp_path, tokenizers["none"], [{"text": "w1"}] * 3, num_samples=64)
    with pytest.raises(InputError, match=r"has 3 samples; .* needs 64"):
        tokenise(request)


def test_tokenizer_with_more_ids_than_the_model(tmp_path, tokenizers):
    request = request_of(tmp_path, tokenizers["none"], [{"text": "w80"}], vocab_size=64)
    with pytest.raises(InputError, match=r"chat\.jsonl:1: .* token id 86.*ends at 63"):
        tokenise(request)


def test_missing_and_refusing_templates_name_the_line(tmp_path, tokenizers):
    with pytest.raises(InputError, match=r"chat\.jsonl:1: the tokenizer has no chat template"):
        tokenise(request_of(tmp_path, tokenizers["none"], [chat("w1")]))
    with pytest.raises(InputError, match=r"chat\.jsonl:1: .*refuses the messages: system first"):
        tokenise(request_of(tmp_path, tokenizers["strict"], [chat("w1")]))


def test_folder_without_a_tokenizer(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no tokenizer can be loaded from"):
        tokenise(request_of(tmp_path, tmp_path / "empty", [{"text": "w1"}]))


def made(tmp_path: Path, tokenizer: object, lines: list[object], **changes) -> Samples:
    request_of(tmp_path, Path("unused"), lines)
    return make(tmp_path, tokenizer, **changes)


def make(tmp_path: Path, tokenizer: object, **changes) -> Samples:
    fields = {
        "lengths": None,
        "jsonl": str(tmp_path / "chat.jsonl"),
        "tokenizer": None if tokenizer is None else str(tokenizer),
        "max_length": 8,
        "seed": 0,
        "num_samples": 4,
        "vocab_size": 96,
        "folder": tmp_path / "study" / "data",
    }
    return make_samples(**{**fields, **changes})


LINES = [{"text": f"w{i} " * (3 * i)} for i in range(1, 6)]


def test_whole_way_in_a_process_of_its_own_and_only_once(tmp_path, tokenizers, monkeypatch):
    """BUG-070 (paths): the tokenizer's folder has a shell command in its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "autotune").mkdir()  # must not shadow the package
    (tmp_path / "autotune" / "__init__.py").write_text("raise SystemExit('shadowed')")
    found = made(tmp_path, tokenizers["none"], LINES)
    assert set(found.lengths) <= {4, 7, 8}
    assert found.dataset_samples == 5
    assert found.truncated >= 2
    assert found.source == str(tmp_path / "chat.jsonl")
    assert Path(found.token_file).parent == tmp_path / "study" / "data"
    with monkeypatch.context() as patch:
        patch.setattr(samples_module, "_run", lambda request: pytest.fail("made twice"))
        assert make(tmp_path, tokenizers["none"]) == found
    (tmp_path / "chat.jsonl").write_text('{"text": "w1 w2"}\n' * 4)
    assert make(tmp_path, tokenizers["none"]).lengths == (3, 3, 3, 3)


def test_errors_cross_the_process_with_their_kind(tmp_path, tokenizers):
    with pytest.raises(InputError, match="the cycle of global batches needs 4") as caught:
        made(tmp_path, tokenizers["none"], LINES[:1])
    assert caught.value.hint == "give more samples or lower global_batch"
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="cannot write"):
        made(tmp_path, tokenizers["none"], LINES, folder=tmp_path / "file" / "data")


def test_tokenizer_from_a_hub_that_is_not_reached(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    with pytest.raises(EnvironmentFault, match="the hub was not reached"):
        made(tmp_path, "org/name", LINES)


def test_problems_known_without_a_process(tmp_path, tokenizers):
    with pytest.raises(InputError, match="there is no file"):
        made(tmp_path, tokenizers["none"], LINES, jsonl=str(tmp_path / "gone.jsonl"))
    with pytest.raises(InputError, match="there is no file"):
        make(tmp_path, tokenizers["none"], jsonl="x" * 5000)
    with pytest.raises(InputError, match="needs a tokenizer"):
        made(tmp_path, None, LINES)
    with pytest.raises(InputError, match="exactly one of lengths and jsonl"):
        made(tmp_path, None, LINES, lengths="ultrachat-like")
    with pytest.raises(InputError, match="max_length 1 is too short"):
        made(tmp_path, tokenizers["none"], LINES, max_length=1)


def test_drawn_samples_touch_no_folder(tmp_path):
    found = made(tmp_path, None, [], lengths="ultrachat-like", jsonl=None, folder=None)
    assert len(found.lengths) == 4
    assert found.token_file is None
    assert found.dataset_samples is None


def test_coordinator_side_imports_no_torch_or_transformers():
    code = (
        "import sys\nimport autotune.data.samples, autotune.data.schedule\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_a_tokenizers_folder_that_cannot_be_read(tmp_path, monkeypatch):
    """As another user sees it; the test's own user may be root, whom no mode stops."""
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n')
    closed = tmp_path / "closed"
    closed.mkdir()

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=r"folder .*closed cannot be read: Permission denied$"):
        make_samples(
            lengths=None,
            jsonl=str(tmp_path / "d.jsonl"),
            tokenizer=str(closed),
            max_length=8,
            seed=0,
            num_samples=1,
            vocab_size=9,
            folder=tmp_path,
        )
