from __future__ import annotations

import dataclasses

import pytest

from autotune.contract.plan import Measuring, Racing
from autotune.worker.command_end import explain, last_line
from autotune.worker.reported import wanted_steps, window_of

RULES = Measuring(
    warmup_tolerance=0.1,
    warmup_max_cycles=3,
    interval_share=0.05,
    window_s=100.0,
    window_iterations=8,
)


def test_no_window_while_warm_up_lasts() -> None:
    assert window_of([], 2, RULES) is None
    assert window_of([[9.0, 1.0, 0.5]], 2, RULES) is None


def test_window_after_two_cycles_that_agree() -> None:
    found = window_of([[9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 0.8]], 2, RULES)
    assert found is not None
    assert found.warmup_s == (9.0, 9.0, 1.0, 1.0, 1.0, 1.0)
    assert found.iteration_s == (1.0, 1.2)  # the third is no whole cycle
    assert found.steady
    assert found.verdict == "go_on"


def test_what_comes_after_the_window_is_left_out() -> None:
    found = window_of([[1.0] * 4 + [2.0, 2.0, 2.0, 2.0] + [50.0] * 8], 2, RULES)
    assert found is not None
    assert found.verdict == "done"
    assert found.iteration_s == (2.0,) * 4


def test_the_slowest_rank_of_the_window() -> None:
    found = window_of([[1.0] * 8, [2.0] * 9], 2, RULES)
    assert found is not None
    assert found.iteration_s == (2.0,) * 4


def test_racing_stops_what_is_clearly_slower() -> None:
    rules = dataclasses.replace(
        RULES, interval_share=1e-9, racing=Racing(best_s_per_it=0.1, noise_share=0.05)
    )
    found = window_of([[1.0, 1.0, 1.0, 1.0, 1.0, 1.1, 1.0, 1.1001, 1.0, 1.0]], 2, rules)
    assert found is not None
    assert found.verdict == "slower"


def test_the_number_of_steps_that_is_certainly_enough() -> None:
    assert wanted_steps(RULES, 2) == 1 + 6 + 8
    assert wanted_steps(RULES, 3) == 1 + 9 + 9


TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n    f()\n'


@pytest.mark.parametrize(
    ("code", "log", "kills", "expected"),
    [
        (1, TRACE + "KeyError: 'x'\n", 0, ("KeyError", "'x'", "crash")),
        (1, TRACE + "StopIteration\n", 0, ("StopIteration", "", "crash")),
        (1, TRACE + "a.b.Odd: one\nmore text\n", 0, ("a.b.Odd", "one", "crash")),
        # A chain: what was raised last is what the user sees.
        (1, TRACE + "KeyError: 'x'\n\nDuring …\n\n" + TRACE + "OSError: y\n", 0,
         ("OSError", "y", "crash")),
        # A peer that lost its connection is no cause.
        (1, TRACE + "ValueError: bad\n" + TRACE + "ConnectionResetError: reset by peer\n", 0,
         ("ValueError", "bad", "crash")),
        (1, "std::bad_alloc\n", 0, ("exit code 1", "memory could not be had", "oom_host")),
        (1, "Signal 9 (SIGKILL) received\n", 1,
         ("exit code 1", "memory could not be had", "oom_host")),
        (-9, "", 1, ("SIGKILL", "the kernel killed it for want of memory", "oom_host")),
        (137, "", 1, ("SIGKILL", "the kernel killed it for want of memory", "oom_host")),
        (-9, "", 0, ("SIGKILL", "the command was ended from outside", "crash")),
        (-6, "", 0, ("SIGABRT", "the command was ended", "crash")),
        (2, "usage: x\n  bad option \n\n", 0, ("exit code 2", "bad option", "crash")),
        (2, "", 0, ("exit code 2", "the command printed nothing", "crash")),
        # torchrun's own words, of a rank that left no traceback.
        (1, "E1130 api.py:1002] failed (exitcode: 7) local_rank: 1 (pid: 9) of binary: python\n"
            + TRACE + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
            "=====\nexitcode  : -15 (pid: 8)  (SIGTERM)\n=====\n", 0,
         ("exit code 7", "local rank 1 ended so, and said nothing", "crash")),
        (1, "failed (exitcode: -11) local_rank: 0 (pid: 9) of binary: python\n", 0,
         ("SIGSEGV", "local rank 0 ended so, and said nothing", "crash")),
    ],
)  # fmt: skip
def test_why_a_command_ended(
    code: int, log: str, kills: int, expected: tuple[str, str, str]
) -> None:
    end = explain(code, log, oom_kills=kills)
    assert (end.name, end.message, end.kind) == expected


def test_last_line() -> None:
    assert last_line("a\n b \n\n") == "b"
    assert last_line("éa: 1\n=====\n--- ___\n") == "éa: 1"
