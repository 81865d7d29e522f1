from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.contract.plan import Optimizer, Precision
from autotune.errors import SpaceError
from autotune.space.loader import parse_space
from autotune.space.model import IntRange, LoraSpec
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]
BODY = "params: {micro_batch: {choices: [1, 2]}}\n"
WORK = "workload: {model: qwen3-tiny, global_batch: 16}\n"


def fault(text: str) -> SpaceError:
    with pytest.raises(SpaceError) as caught:
        parse_space(text, file="space.yaml")
    assert caught.value.exit_code == 2
    return caught.value


def test_defaults_are_those_of_the_reference(load: Load) -> None:
    space = load()
    workload = space.workload
    assert (workload.data.lengths, workload.data.max_length, workload.data.seed) == (
        "ultrachat-like",
        8192,
        0,
    )
    assert workload.optimizer == Optimizer(lr=1e-5, weight_decay=0.0, gradient_clipping=1.0)
    assert workload.precision == Precision(
        compute="fp32", master="fp32", accumulate="fp32", reduce="fp32"
    )
    assert (workload.finetune, workload.load_weights, space.processes) == ("full", False, None)
    search = space.search
    assert (search.trials, search.sampler, search.max_trial_time_s) == (40, "auto", 300.0)
    assert (search.memory_margin_share, search.allow) == (0.05, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "space.yaml:1:1: the file is empty"),
        ("# note\n", "space.yaml:1:1: the file is empty"),
        ("---\n...\n", "space.yaml:1:1: the file is empty"),
        ("- a\n", "space.yaml:1:1: a space file is a mapping, found a list"),
        ("zero3", "space.yaml:1:1: a space file is a mapping, found a single text"),
        ("backend: zero3\n", "space.yaml:1:1: the required key version is missing"),
        ("version: 2\n", "space.yaml:1:10: version 2 is not known"),
        ("version: one\n", "space.yaml:1:10: version needs a whole number"),
        ("version: 1\n", "space.yaml:1:1: the required key backend is missing"),
        ("version: 1\nbackends: zero3\n", "space.yaml:2:1: unknown key 'backends'"),
        ("version: 1\nbackend: zero2\n", "space.yaml:2:10: unknown backend 'zero2'"),
        ("version: 1\nbackend: [zero3, zero3]\n", "space.yaml:2:18: backend has zero3 twice"),
        ("version: 1\nbackend: []\n", "space.yaml:2:10: backend is an empty list"),
        ("version: 1\nbackend: {a: 1}\n", "space.yaml:2:10: backend needs one of"),
        ("version: 1\nbackend: zero3\n" + BODY, "the required key workload is missing"),
        ("version: 1\nbackend: zero3\nworkload:\n" + BODY, "space.yaml:3:10: workload is empty"),
        ("version: 1\nbackend: zero3\n" + WORK, "the required key params is missing"),
        ("version: 1\nbackend: zero3\n" + WORK + "params: {}\n", "params is empty"),
        (
            "version: 1\nbackend: zero3\nworkload: {model: m}\n" + BODY,
            "space.yaml:3:11: the required key workload.global_batch is missing",
        ),
        (
            "version: 1\nbackend: zero3\nworkload: {global_batch: 4}\n" + BODY,
            "space.yaml:3:11: the required key workload.model is missing",
        ),
    ],
)
def test_what_is_required(text: str, message: str) -> None:
    assert message in str(fault(text))


def test_without_a_global_batch_nothing_is_compared() -> None:
    """BUG-038"""
    error = fault("version: 1\nbackend: zero3\nworkload: {model: qwen3-tiny}\n" + BODY)
    assert "workload.global_batch is missing" in str(error)
    assert error.hint is not None
    assert "unequal work" in error.hint


def test_the_objective_cannot_be_another(load: Load) -> None:
    """BUG-038"""
    with pytest.raises(SpaceError, match="unknown key 'objective'") as caught:
        load(rest="search: {objective: raw_seconds}\n")
    assert caught.value.hint is not None
    assert "one fixed global batch" in caught.value.hint


@pytest.mark.parametrize(
    ("rest", "place", "hint"),
    [
        ("trials: 3", "6:1", "trials belongs under search"),
        ("model: x", "6:1", "model belongs under workload"),
        ("lr: 3", "6:1", "lr belongs under workload.optimizer"),
        ("constraint: []", "6:1", "did you mean constraints?"),
        ("parameters: {}", "6:1", "did you mean params?"),
        ("reduce_bucket_size: 1", "6:1", "it belongs under params, fixed or baseline"),
        ("reduce_bucket_sise: 1", "6:1", "did you mean the knob reduce_bucket_size?"),
        ("zero_quantized_nontrainable_weights: true", "6:1", "in float16 only"),
        ("offload_param: cpu", "6:1", "it belongs under params, fixed or baseline"),
        ("search: {trial: 3}", "6:10", "did you mean trials?"),
        ("search: {params: 3}", "6:10", "params belongs at the top level"),
        ("topology: {gpus: 3}", "6:12", "did you mean processes?"),
        ("fixed: {trials: 3}", "6:9", "trials belongs under search"),
        ("fixed: {stage3_prefetch_buckets_size: 3}", "6:9", "stage3_prefetch_bucket_size?"),
        ("baseline: {lr: 3}", "6:12", "workload.optimizer.lr"),
    ],
)
def test_an_unknown_key_says_where_it_belongs(load: Load, rest: str, place: str, hint: str) -> None:
    """BUG-008"""
    with pytest.raises(SpaceError) as caught:
        load(rest=rest + "\n")
    assert str(caught.value).startswith(f"space.yaml:{place}: ")
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_an_unknown_knob_names_the_nearest(load: Load) -> None:
    """BUG-008"""
    with pytest.raises(SpaceError) as caught:
        load("stage3_prefetch_buckets_size: {type: int, low: 1e6, high: 1e8}")
    assert str(caught.value) == "space.yaml:5:3: unknown knob 'stage3_prefetch_buckets_size'"
    assert caught.value.hint == "did you mean stage3_prefetch_bucket_size?"


def test_unknown_engine_keys_need_the_section_for_them(load: Load) -> None:
    """BUG-008"""
    space = load(rest="unverified: {deepspeed: {some_key: 1, zero_optimization: {x: true}}}\n")
    assert space.unverified == {"deepspeed": {"some_key": 1, "zero_optimization": {"x": True}}}


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ("{zero_optimization: {reduce_bucket_size: 1}}", "is a known knob"),
        ("{zero_optimization: {prefetch_bucket_size: 1}}", "is a known knob"),
        ("{zero_optimization: {offload_optimizer: {device: cpu}}}", "is a known knob"),
        ("{zero_optimization: {stage: 2}}", "may not set"),
        ("{gradient_clipping: 0.5}", "workload.optimizer.gradient_clipping says it"),
        ("{train_batch_size: 4}", "global_batch says it"),
        ("{a: off}", "ambiguous"),
        ("{a: 010}", "ambiguous"),
        ("[1]", "needs a mapping"),
    ],
)
def test_unverified_passes_nothing_that_is_known(load: Load, inner: str, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        load(rest=f"unverified: {{deepspeed: {inner}}}\n")


def test_fsdp2_has_no_keys_to_pass_through(load: Load) -> None:
    with pytest.raises(SpaceError, match="unverified.fsdp2 cannot be passed on"):
        load(backend="fsdp2", rest="unverified: {fsdp2: {x: 1}}\n")


@pytest.mark.parametrize(
    ("param", "words"),
    [
        ("lr: {low: 1e-6, high: 1e-4}", "lr is part of the work"),
        ("workload.max_length: {choices: [1, 2]}", "part of the work"),
        ("seq_length: {choices: [1, 2]}", "part of the work"),
        ("precision: {choices: [fp32, bf16]}", "part of the work"),
        ("mixed_precision: {choices: [no, bf16]}", "part of the work"),
        ("global_batch: {choices: [8, 16]}", "part of the work"),
        ("gradient_accumulation_steps: {choices: [8, 16]}", "it follows from global_batch"),
        ("offload_optimizer: {choices: [none, cpu]}", "only with permission"),
        ("zero_stage: {choices: [2, 3]}", "zero_stage is a knob of deepspeed"),
        ("env.NCCL_NVLS_ENABLE: {choices: [0, 1]}", "never changed nor tuned"),
        ("NVSHMEM_DISABLE_NVLS: {choices: [0, 1]}", "never changed nor tuned"),
        ("env.OMP_NUM_THREADS: {choices: [1, 2]}", "divides the host's cores"),
        ("env.HOME: {choices: [1, 2]}", "env.HOME is no knob"),
        ("reshard_after_forward: {choices: [on, off]}", "is a knob of fsdp2"),
        ("trials: {choices: [1, 2]}", "does not belong under params"),
        ("backend: {choices: [zero3, fsdp2]}", "does not belong under params"),
    ],
)
def test_what_is_never_tuned_says_why(load: Load, param: str, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        load(param)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("fixed: {micro_batch: 2}", "micro_batch is both tuned and fixed"),
        ("fixed: {max_tokens: 9000}", "either by micro_batch .* or by max_tokens"),
        ("fixed: {overlap_comm: on, zero3.overlap_comm: off}", "are the same knob"),
        ("fixed: {overlap_comm: on}\nbaseline: {overlap_comm: off}", "is fixed to true"),
        ("fixed: {overlap_comm: 1}", "overlap_comm needs true or false"),
        ("fixed: {overlap_comm: }", "found nothing"),
        ("fixed: [overlap_comm]", "fixed needs a mapping"),
        ("baseline: {reduce_bucket_size: 0}", "must be at least 1"),
        ("baseline: {micro_batch: 1, max_tokens: 9000}", "either by micro_batch"),
        ("baseline: {backend: fsdp2}", "baseline.backend needs one of zero3"),
        ("constraints: [overlap_comm == false]", "can never hold"),
        ("constraints: [micro_batch < 'x']", "needs numbers"),
        ("constraints: [batching == pakced]", "unknown name 'pakced'"),
        ("constraints: [batching == 'pakced']", "batching is never 'pakced'"),
        ("constraints: micro_batch < 3", "constraints needs a list"),
        ("constraints: [[micro_batch < 3]]", "found a list"),
        ("constraints: [{a: 1}]", "found a mapping"),
        ("constraints: ['']", "empty"),
        ("topology: {processes: two}", "needs auto or a number"),
        ("topology: {processes: 0}", "must be at least 1"),
        ("topology: {processes: 1.5}", "not a whole number"),
        ("topology: 2", "topology needs a mapping"),
        ("search: {trials: 0}", "must be at least 1"),
        ("search: {trials: many}", "not a number"),
        ("search: {sampler: tpee}", "needs one of auto, tpe, gp, random"),
        ("search: {max_trial_time: 300}", "300 has no unit"),
        ("search: {max_trial_time: 1:30}", "ambiguous"),
        ("search: {max_trial_time: 5 parsecs}", "no known unit"),
        ("search: {max_trial_time: -5m}", "not a duration"),
        ("search: {max_trial_time: [5m]}", "needs a duration"),
        ("search: {memory_margin: 5}", "ambiguous"),
        ("search: {memory_margin: 120%}", "below 100%"),
        ("search: {memory_margin: -5%}", "at least 0%"),
        ("search: {allow: [micro_batch]}", "needs no permission"),
        ("search: {allow: micro_batch}", "search.allow needs a list"),
    ],
)
def test_sections_that_cannot_be(load: Load, rest: str, words: str) -> None:
    with pytest.raises(SpaceError, match=words) as caught:
        load(rest=rest + "\n")
    assert str(caught.value).startswith("space.yaml:")


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("precision: fp16", "needs one of fp32, bf16"),
        ("precision: bfloat16", "is written bf16"),
        ("precision: {master: bf16}", "needs compute"),
        ("precision: {compute: bf16, foo: 1}", "unknown key 'foo'"),
        ("precision: [bf16]", "found a list"),
        ("data: {lengths: foo}", "needs one of ultrachat-like"),
        ("data: {jsonl: a.jsonl}", "needs a tokenizer"),
        ("data: {tokenizer: t}", "used with jsonl only"),
        ("data: {lengths: ultrachat-like, jsonl: a, tokenizer: t}", "both lengths and jsonl"),
        ("data: {max_length: 1}", "at least 2"),
        ("data: {seed: -1}", "at least 0"),
        ("data: {seed: }", "seed has no value"),
        ("optimizer: {lr: -1}", "at least 0"),
        ("optimizer: {lr: fast}", "not a number"),
        ("optimizer: {betas: [0.9]}", "needs two numbers"),
        ("optimizer: {betas: [0.9, 1]}", "below 1"),
        ("optimzer: {}", "unknown key 'optimzer'"),
        ("finetune: adapters", "needs one of full, lora, qlora"),
        ("finetune: ", "needs one of full, lora, qlora, found nothing"),
        ("finetune: [lora]", "found a list"),
        ("finetune: {full: {}}", "unknown key 'full' under workload.finetune"),
        ("finetune: {lora: {}, qlora: {}}", "needs one of lora and qlora, found 2"),
        ("finetune: {}", "needs one of lora and qlora, found 0"),
        ("finetune: {lora: 16}", "workload.finetune.lora needs a mapping"),
        ("finetune: {lora: {rank: 0}}", "workload.finetune.lora.rank must be at least 1"),
        ("finetune: {lora: {rank: 1.5}}", "rank needs a whole number"),
        ("finetune: {qlora: {alpha: 0}}", "workload.finetune.qlora.alpha must be above 0"),
        ("finetune: {lora: {dropout: 0.05}}", "dropout must be 0"),
        ("finetune: {lora: {dropout: -1}}", "dropout must be at least 0"),
        ("finetune: {lora: {targets: all}}", "targets needs one of all-linear"),
        ("finetune: {lora: {targets: []}}", "targets is an empty list"),
        ("finetune: {lora: {targets: [q_proj, q_proj]}}", "has q_proj twice"),
        ("finetune: {lora: {r: 8}}", "unknown key 'r' under workload.finetune.lora"),
        ("batching: foo", "batching needs one of"),
        ("load_weights: 1", "needs true or false"),
        ("micro_batch: 2, max_tokens: 9000", "either by micro_batch"),
        ("lr: 3", "unknown key 'lr'"),
        ("model: other", "stands twice"),
    ],
)
def test_workloads_that_cannot_be(load: Load, workload: str, words: str) -> None:
    with pytest.raises(SpaceError, match=words) as caught:
        load(workload=", " + workload)
    assert str(caught.value).startswith("space.yaml:3:")


@pytest.mark.parametrize(
    ("written", "kind", "lora"),
    [
        ("full", "full", None),
        ("lora", "lora", LoraSpec(rank=16, alpha=32.0, targets=None)),
        ("qlora", "qlora", LoraSpec()),
        ("{lora: {}}", "lora", LoraSpec()),
        (
            "{lora: {rank: 8, alpha: 1.6e1, dropout: 0.0, targets: [v_proj, q_proj]}}",
            "lora",
            LoraSpec(rank=8, alpha=16.0, targets=("q_proj", "v_proj")),
        ),
        ("{qlora: {targets: all-linear, x-note: as the paper}}", "qlora", LoraSpec()),
    ],
)
def test_what_is_trained(load: Load, written: str, kind: str, lora: LoraSpec | None) -> None:
    workload = load(workload=f", finetune: {written}").workload
    assert (workload.finetune, workload.lora) == (kind, lora)


def test_pefts_own_names_lead_to_ours(load: Load) -> None:
    for name, meant in {
        "r": "rank",
        "lora_alpha": "alpha",
        "lora_dropout": "dropout",
        "target_modules": "targets",
    }.items():
        with pytest.raises(SpaceError, match="unknown key") as caught:
            load(workload=f", finetune: {{lora: {{{name}: 8}}}}")
        assert caught.value.hint == f"did you mean {meant}?"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("90s", 90), ("{value: 350, unit: ms}", 0.35)],
)
def test_durations_carry_units(load: Load, written: str, seconds: float) -> None:
    space = load(rest=f"search: {{max_trial_time: {written}}}\n")
    assert space.search.max_trial_time_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("written", "share"), [("5%", 0.05), ("0.1", 0.1), ("'7 %'", 0.07), ("0%", 0)]
)
def test_memory_margin_is_a_share(load: Load, written: str, share: float) -> None:
    space = load(rest=f"search: {{memory_margin: {written}}}\n")
    assert space.search.memory_margin_share == pytest.approx(share)


def test_bf16_is_a_mapping_with_float32_sums(load: Load) -> None:
    short = load(workload=", precision: bf16").workload.precision
    assert short == Precision(compute="bf16", master="fp32", accumulate="fp32", reduce="fp32")
    assert load(workload=", precision: {compute: bf16}").workload.precision == short


def test_when_looks_back_only(load: Load) -> None:
    """BUG-017"""
    cases: dict[tuple[str, ...], str] = {
        ("micro_batch: {choices: [1], when: overlap_com == true}",): "unknown knob 'overlap_com'",
        ("micro_batch: {choices: [1], when: overlap_comm == true}",): "neither tuned nor fixed",
        ("micro_batch: {choices: [1], when: micro_batch == 1}",): "names micro_batch itself",
        (
            "micro_batch: {choices: [1], when: overlap_comm == true}",
            "overlap_comm: {choices: [on, off], when: micro_batch == 1}",
        ): "which stands later in params",
        ("micro_batch: {choices: [1], when: 'overlap_comm ='}",): "'=' is unexpected",
        ("micro_batch: {choices: [1], when: [a]}",): "found a list",
        ("micro_batch: {choices: [1], when: 3}",): "neither true nor false",
    }
    for params, words in cases.items():
        with pytest.raises(SpaceError, match=words):
            load(*params)


def test_a_condition_error_points_to_its_character(load: Load) -> None:
    with pytest.raises(SpaceError) as caught:
        load(
            "micro_batch: {choices: [1], when: overlap_comm = true}",
            rest="fixed: {overlap_comm: on}\n",
        )
    assert str(caught.value) == "space.yaml:5:50: when of micro_batch: '=' is unexpected"
    assert caught.value.hint == "write == to compare"


def test_when_may_name_what_is_fixed_or_stated(load: Load) -> None:
    space = load(
        "micro_batch: {choices: [1], when: overlap_comm == true and batching == padded}",
        workload=", batching: padded",
        rest="fixed: {overlap_comm: on}\n",
    )
    assert space.active({}) == space.params


def test_x_names_are_never_settings() -> None:
    """BUG-003"""
    space = parse_space(
        "version: 1\nbackend: zero3\nx-b: &b {type: int, low: 1, high: 9}\n"
        "workload: {model: m, global_batch: 16, x-why: {a: 1}}\n"
        "params:\n  x-note: 3\n  reduce_bucket_size: {<<: *b, high: 5}\nfixed: {x-a: 1}\n",
        file="space.yaml",
    )
    (param,) = space.params
    assert param.name == "reduce_bucket_size"
    assert param.domain == IntRange(low=1, high=5)
    assert space.fixed == {}


def test_a_merged_section_is_read_like_a_written_one() -> None:
    """BUG-003"""
    text = (
        "version: 1\nbackend: zero3\nx-a: &a {low: 1}\nx-b: &b {low: 2, high: 9}\n"
        "workload: {model: m, global_batch: 16}\n"
        "params: {reduce_bucket_size: {<<: [*a, *b]}}\n"
    )
    (param,) = parse_space(text, file="f").params
    assert param.domain == IntRange(low=1, high=9)


def test_knobs_of_another_backend_are_dropped_with_the_reason(load: Load) -> None:
    space = load(
        "micro_batch: {choices: [1, 2]}",
        "fsdp2.reshard_after_forward: {choices: [true, false]}",
        "allgather_bucket_size: {low: 1, high: 9}",
    )
    assert [param.name for param in space.params] == ["micro_batch"]
    reasons = {item.param: item.reason for item in space.dropped}
    assert "is a knob of fsdp2" in reasons["fsdp2.reshard_after_forward"]
    assert "changes nothing under zero3" in reasons["allgather_bucket_size"]


def test_no_parameter_left_is_an_error(load: Load) -> None:
    with pytest.raises(SpaceError, match="no parameter is left to tune"):
        load("allgather_bucket_size: {low: 1, high: 9}")


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nbackend: 'a\n\n  b'\n",
        'version: 1\nbackend: "\\e[2J"\n',
        'version: 1\n"a\\nb": 1\n"a\\nb": 2\n',
        "version: !<a%0Ab> 1\n",
    ],
)
def test_every_error_is_one_printable_line(text: str) -> None:
    assert str(fault(text)).isprintable()
