"""On real daemons: a site of any configuration has its nodes idle after the install, or is refused before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.history.values.tres import gres_list
from tests.live.slurm.real_slurm import needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

STORY = r"""
again() {
    restart
    [ "$(sinfo -h -N -t idle -o %n | sort -u | wc -l)" = 2 ] && return 0
    sinfo -N -o '%N %T %E %G' >&2; tail -n 3 log/slurmd.* log/slurmctld >&2; return 1
}
sums() { sha256sum slurm.conf *.conf *.lua site.d/* 2>/dev/null || true; }
[ ! -f change.sh ] || bash -eu change.sh
sums >before
berth_slurm() { "$BERTH" slurm "$@" --partitions gpu --state "$PWD/state"; }
if berth_slurm install --apply --folder "$PWD/berth" $OPTIONS >diff 2>said; then
    again
    scontrol -o show node | grep -o ' Gres=[^ ]*' | cut -c7- >gres
    berth_slurm check --card v100=16G --card gpu=16G >check || true
    "$BERTH" slurm uninstall --folder "$PWD/berth" 2>>said
    again
    [ ! -e berth ]
else
    echo refused >gres
fi
sums >after
diff before after
"""
TWO = "gpu:v100_0:1,gpu:v100_1:1"
PLAIN = [f"{TWO},shard:16"] * 2
SITES: dict[str, list[str] | str] = {
    "plain": PLAIN,
    "shards_of_a_node": [f"{TWO},shard:8"] * 2,
    "shards_of_each_gpu": [f"{TWO},shard:8"] * 2,
    "mps": [f"{TWO},mps:200,shard:16"] * 2,
    "mig": [TWO] * 2,
    "autodetect": "AutoDetect=nvml for node node1",
    "autodetect_off": PLAIN,
    "included_nodes": PLAIN,
    "included_gpus": PLAIN,
    "included_by_cluster": PLAIN,
    "default_line": PLAIN,
    "node_set": PLAIN,
    "unlike_nodes": [f"{TWO},shard:16", "gpu:a100:1,shard:8"],
    "several_partitions": [f"{TWO},shard:16", "gpu:v100:2"],
    "licences": PLAIN,
    "reservation": PLAIN,
    "jobstats": PLAIN,
    "own_plugin": PLAIN,
    "no_types": ["gpu:gpu_0:1,gpu:gpu_1:1,shard:16"] * 2,
    "one_gres_conf_each": PLAIN,
    "cores": PLAIN,
    "odd_lines": PLAIN,
    "other_gres": [f"nic:2,{TWO},shard:16"] * 2,
}
"""What nodes have after the install, or what a refusal says, by the site's name in sites.sh."""


@pytest.mark.parametrize("site", SITES)
def test_nodes_are_idle_after_the_install_and_files_as_before_after_the_uninstall(
    tmp_path: Path, open_folder: Path, site: str
) -> None:
    wanted = SITES[site]
    told = _told(tmp_path, open_folder, site)
    said, gres = (told / "said").read_text(), _gres(told)
    if isinstance(wanted, str):
        assert (gres, wanted in said) == (["refused"], True), said
    else:
        assert gres == wanted, said
        assert "no job starts on node" not in (told / "check").read_text()
        assert ("--keep-types avoids it" in said) == any("v100_0" in each for each in wanted)


def test_types_that_are_kept_leave_gres_conf_but_for_the_shards(tmp_path: Path, open_folder: Path) -> None:
    told = _told(tmp_path, open_folder, "plain", "--keep-types")
    assert _gres(told) == ["gpu:v100:2,shard:16"] * 2
    assert "v100" not in (told / "said").read_text()


def _told(tmp_path: Path, folder: Path, site: str, options: str = "") -> Path:
    setup = tmp_path / "setup.sh"
    setup.write_text(f'cd "$DIR"; . {Path(__file__).with_name("sites.sh")}; {site}\n')
    return tell(folder, STORY, CLUSTER_SETUP=str(setup), OPTIONS=options)


def _gres(told: Path) -> list[str]:
    """What each node has, with the shards of its GPUs together at the end."""
    return [_summed(each) for each in (told / "gres").read_text().split()]


def _summed(gres: str) -> str:
    parts = [(each.name, each.count) for each in gres_list(gres) if each.name in ("mps", "shard")]
    sums = [
        f"{name}:{sum(n for part, n in parts if part == name)}"
        for name in sorted({name for name, _ in parts})
    ]
    items = [each for each in gres.split(",") if not each.startswith(("mps:", "shard:"))]
    return ",".join([*(each.partition("(")[0] for each in items), *sums])  # of cores it says (S:0-7)
