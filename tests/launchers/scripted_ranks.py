"""What the ranks of the launcher's tests do, instead of training. Started by name.

``script.json`` in the attempt folder names one action per rank (a list), each a list of a name
and arguments.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path


def run_rank(folder: Path, rank: int) -> int:
    actions = json.loads((folder / "script.json").read_text())
    name, *arguments = actions[rank]
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    return globals()[f"do_{name}"](folder, rank, *arguments)


def say(folder, rank, phase, **more):
    """Give a sign of life, as a real rank does before anything that can fail."""
    path = folder / f"heartbeat-{rank}.json"
    said = {"phase": phase, "at": time.time(), "iteration": 0, **more}
    path.with_suffix(".tmp").write_text(json.dumps(said))
    path.with_suffix(".tmp").replace(path)


def do_exit(folder, rank, code):
    say(folder, rank, "init")
    return code


def do_system_exit(folder, rank, code):
    say(folder, rank, "init")
    sys.exit(code)


def do_sleep(folder, rank, seconds):
    time.sleep(seconds)
    return 0


def do_raise(folder, rank, message):
    say(folder, rank, "init")
    raise RuntimeError(message)


def do_signal(folder, rank, number):
    say(folder, rank, "init")
    return do_signal_at_once(folder, rank, number)


def do_signal_at_once(folder, rank, number):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), number)
    time.sleep(60)
    return 0


def do_ignore_term(folder, rank):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"ignoring-{rank}").touch()
    time.sleep(600)
    return 0


def do_stop_itself(folder, rank):
    os.kill(os.getpid(), signal.SIGSTOP)
    return 0


def do_print(folder, rank, megabytes, then_sleep):
    print("first line")
    block = ("x" * 99 + "\n") * 10486
    for _ in range(megabytes):
        sys.stdout.write(block)
    sys.stdout.flush()
    time.sleep(then_sleep)
    print("last line")
    return 0


def do_garbage(folder, rank):
    os.write(1, bytes(range(256)) * 10)
    (folder / f"heartbeat-{rank}.json").write_bytes(b"\x80\x04garbage")
    (folder / f"rank-{rank}.json").write_bytes(b"\x80\x04garbage")
    time.sleep(600)
    return 0


def do_fifo_heartbeat(folder, rank):
    os.mkfifo(folder / f"heartbeat-{rank}.json")
    time.sleep(600)
    return 0


def do_phase(folder, rank, phase, seconds):
    say(folder, rank, phase)
    time.sleep(seconds)
    return 0


def do_moving(folder, rank, phase, moves, every, then=0.0):
    """Move slowly, a step now and then; afterwards stand still for ``then`` seconds."""
    for step in range(moves):
        say(folder, rank, phase, steps=step)
        time.sleep(every)
    time.sleep(then)
    return 0


def do_leave_group(folder, rank):
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "left-group").touch()
    time.sleep(600)
    return 0


def do_stop_server(folder, rank, number):
    os.kill(os.getppid(), number)
    time.sleep(600)
    return 0


def do_cache_folders(folder, rank):
    names = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TILELANG_CACHE_DIR")
    seen = {name: os.environ[name] for name in (*names, "TORCH_EXTENSIONS_DIR")}
    (folder / f"caches-{rank}.json").write_text(json.dumps(seen))
    return 0


def do_failed_record(folder, rank):
    (folder / f"rank-{rank}.json").write_text(json.dumps({"status": "failed"}))
    time.sleep(600)
    return 0


def do_daemons(folder, rank, then):
    """Leave two grandchildren that are hard to find: one forked, one executed."""
    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            (folder / "daemon-forked").write_text(str(os.getpid()))
            os.write(ready_write, b"1")
            time.sleep(600)
        os._exit(0)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    executed = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={})
    (folder / "daemon-executed").write_text(str(executed.pid))
    os.read(ready_read, 1)
    return run_action(folder, rank, then)


def run_action(folder, rank, action):
    name, *arguments = action
    return globals()[f"do_{name}"](folder, rank, *arguments)


def do_describe(folder, rank):
    """Write down what this process looks like from inside and to a C library."""
    import ctypes

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    imported = sys.modules.get("settings_at_import")
    names = ("RANK", "MARKED_BY_TEST", "FSDP_VERSION", "PYTORCH_NVML_BASED_CUDA_CHECK")
    c_view = {name: getenv(name.encode()) for name in names}
    links = {}
    for fd in Path("/proc/self/fd").iterdir():
        try:
            links[fd.name] = str(fd.readlink())
        except FileNotFoundError:  # the descriptor that listed the folder
            continue
    data = {
        "environment": dict(os.environ),
        "c": {name: None if v is None else v.decode() for name, v in c_view.items()},
        "pgid": os.getpgid(0),
        "sid": os.getsid(0),
        "cwd": str(Path.cwd()),
        "fds": links,
        "stdin": str(Path("/proc/self/fd/0").readlink()),
        "argv": sys.argv,
        "sigterm_is_default": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "seen_at_import": getattr(imported, "SEEN", None),
        "server": os.getppid(),
    }
    (folder / f"described-{rank}.json").write_text(json.dumps(data))
    return 0


def do_all_reduce(folder, rank):
    import torch
    import torch.distributed as dist

    from autotune.contract.folder import AttemptFolder
    from autotune.worker import rendezvous

    plan = AttemptFolder(folder).read_plan()
    rendezvous.init_process_group(plan, rank, folder=folder)
    value = torch.tensor([float(rank + 1)])
    dist.all_reduce(value)
    (folder / f"sum-{rank}").write_text(str(value.item()))
    deadline = time.monotonic() + 60
    while not (folder / "go-on").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    options = parser.parse_args()
    sys.exit(run_rank(options.folder, options.rank))
