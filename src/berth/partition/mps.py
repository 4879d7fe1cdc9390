"""NVIDIA's Multi-Process Service: one control daemon a GPU, from its first partition to its last."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from berth.errors import PartitionError

PROGRAM = "nvidia-cuda-mps-control"
_WAIT_S = 30
_LIMITS = re.compile(r"\d+=[1-9]\d*[MG](,\d+=[1-9]\d*[MG])*")
"""How CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is written: a size for each device."""


def pipe_folder(root: Path, gpu_uuid: str) -> Path:
    """Where the clients of a GPU's daemon find its pipes."""
    return root / f".mps-{gpu_uuid}" / "pipe"


def start_daemon(root: Path, gpu_uuid: str) -> Path:
    """Start the control daemon of a GPU unless it runs; returns its pipe folder."""
    pipe = pipe_folder(root, gpu_uuid)
    fresh = not pipe.parent.exists()
    for folder in (pipe, pipe.parent / "log"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        runs = _control(pipe, gpu_uuid, "get_server_list\n").returncode == 0
        if not runs and (started := _control(pipe, gpu_uuid, None)).returncode != 0:
            raise PartitionError(
                f"{PROGRAM} -d does not start for {gpu_uuid} ({_output(started)}); run it with -f to see why"
            )
    except PartitionError:
        if fresh:
            shutil.rmtree(pipe.parent, ignore_errors=True)
        raise
    return pipe


def check_client(pipe: Path, limits: str) -> None:
    """Refuse to start a client that would run without a limit: NVIDIA's documents say that it does, and without an
    error, if its pipe folder is missing or its limit cannot be read."""
    if not (pipe / "control").exists():
        raise PartitionError(
            f"{pipe} has no pipe of {PROGRAM}, and without it MPS limits nothing; nothing is started. "
            "Remove the partition and create it again"
        )
    if not _LIMITS.fullmatch(limits):
        raise PartitionError(
            f"MPS cannot read the limit '{limits}', and would keep none; nothing is started. "
            "Remove the partition and create it again"
        )


def stop_daemon(root: Path, gpu_uuid: str) -> None:
    """End the control daemon of a GPU, if it runs, and its servers."""
    pipe = pipe_folder(root, gpu_uuid)
    if not pipe.exists() or _control(pipe, gpu_uuid, "get_server_list\n").returncode != 0:
        return
    ended = _control(pipe, gpu_uuid, "quit\n")
    if ended.returncode != 0:
        raise PartitionError(
            f"the control daemon of {gpu_uuid} does not end ({_output(ended)}); end its clients first"
        )


def _control(pipe: Path, gpu_uuid: str, command: str | None) -> subprocess.CompletedProcess[str]:
    """A command to the daemon, or its start."""
    ours = {
        "CUDA_VISIBLE_DEVICES": gpu_uuid,
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(pipe.parent / "log"),
    }
    words = [PROGRAM, "-d"] if command is None else [PROGRAM]
    log = pipe.parent / "log" / "start"
    try:
        with log.open("w+") as log_file:  # a daemon that keeps a pipe open would keep us waiting
            ran = subprocess.run(
                words,
                input=command or "",
                env=os.environ | ours,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_WAIT_S,
                check=False,
            )
            log_file.seek(0)
            return subprocess.CompletedProcess(words, ran.returncode, log_file.read())
    except FileNotFoundError as error:
        raise PartitionError(
            f"there is no {PROGRAM} on this machine; it comes with NVIDIA's driver (nvidia-compute-utils)"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PartitionError(
            f"{' '.join(words)} did not answer within {_WAIT_S} s; see {pipe.parent / 'log'}"
        ) from error


def _output(ran: subprocess.CompletedProcess[str]) -> str:
    return ran.stdout.strip()[-200:] or f"status {ran.returncode}"
