"""Annotations are user input: each mistake is told in an event, and nothing else suffers from it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.errors import AskError
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.constraints import constraint_of, why_not
from berth.live.kubernetes.pod_requests import Gang, cpu_milli, mem_mib, request_of
from tests.examples import examples
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.steered import steered
from tests.live.kubernetes.world import World


def pod(
    annotations: dict[str, str] | None = None, resources: dict[str, str] | None = None, **spec: object
) -> api.Pod:
    takes = {names.RESOURCE: "1"} if resources is None else resources
    body = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": annotations or {}},
        "spec": {
            "schedulingGates": [{"name": names.GATE}],
            "containers": [{"resources": {"requests": takes}}],
            **spec,
        },
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=api.Pod)


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({names.ASKED_MILLI: "-5"}, "is '-5'; expected a whole number from 1 to 1000"),
        ({names.ASKED_MILLI: "1001"}, "from 1 to 1000"),
        ({names.ASKED_MILLI: "0"}, "from 1 to 1000"),
        ({names.ASKED_MILLI: "½"}, "from 1 to 1000"),
        ({names.ASKED_MEM_MIB: "8Gi"}, "is '8Gi'; expected a whole number of MiB"),
        ({names.ASKED_MEM_MIB: "9" * 400}, "without a unit"),
        ({names.ASKED_MEM_MIB: ""}, "is ''; expected"),
        ({names.MAX_MEM_MIB: "16Gi"}, "is '16Gi'; expected a whole number of MiB"),
        ({names.BURST: "1"}, "expected true or false"),
        ({names.MODELS: " , "}, "expected 1 to 32 GPU models"),
        ({names.GANG: "a"}, "expected NAME/SIZE"),
        ({names.GANG: "a/0"}, "a size from 1 to 4096"),
        ({names.GANG: "a/99999999"}, "a size from 1 to 4096"),
        ({names.GANG: "../../x/4"}, "expected NAME/SIZE"),
        ({names.ESTIMATE: "soon"}, "is 'soon'; expected seconds such as 600"),
        ({names.NEW_NODE: "never"}, "is 'never'; expected seconds such as 600"),
        ({names.ESTIMATE: "-1"}, "expected seconds"),
        ({names.ESTIMATE: "²"}, "expected seconds"),
        ({names.ESTIMATE: "1:²"}, "expected seconds"),
        ({names.APPLICATION: "x" * 1000}, "has 1000 characters"),
        ({names.APPLICATION: "a\nb"}, "in one line"),
    ],
)
def test_an_annotation_that_makes_no_sense_is_named_with_what_is_expected(
    annotations: dict[str, str], said: str
) -> None:
    with pytest.raises(AskError, match=r"^annotations? berth\.dev/") as caught:
        request_of(pod(annotations))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (pod({names.ASKED_MILLI: "5"}, {}), "without the resource berth.dev/gpu"),
        (pod({}, {names.RESOURCE: "100000"}), "expected at most 1024"),
        (pod({}, {names.ASKED_MILLI: "300"}), "resource berth.dev/gpu-milli without the resource berth.dev/gpu"),
        (pod({}, {names.RESOURCE: "2", names.ASKED_MILLI: "301"}), "the same whole number of each"),
        (pod({}, {names.RESOURCE: "1", names.ASKED_MILLI: "1001"}), "at most 1000"),
        (pod({names.ASKED_MILLI: "500"}, {names.RESOURCE: "1", names.ASKED_MILLI: "300"}), "use one of them"),
        (pod({}, {names.RESOURCE: "one"}), "'one' is not a quantity"),
        (pod({}, {"cpu": "-1"}), "below 0"),
        (pod(tolerations=[{"key": "a", "operator": "Maybe"}]), "operator 'Maybe'"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_refused_with_what_to_do(asked: api.Pod, said: str) -> None:
    with pytest.raises(AskError) as caught:
        request_of(asked)
    assert said in str(caught.value)


def required(*terms: list[dict[str, object]]) -> dict[str, object]:
    """The affinity that requires one of these terms."""
    selector = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def test_pods_that_say_the_same_in_another_order_have_one_constraint() -> None:
    zones = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    disk, other = {"key": "disk", "operator": "Exists"}, [{"key": "team", "operator": "Exists"}]
    one = pod(
        tolerations=[{"key": "a", "operator": "Exists"}, {"key": "b", "value": "x"}],
        affinity=required([zones, disk], other),
        nodeSelector={"k": "v", "l": "w"},
    )
    same = pod(
        tolerations=[
            {"key": "b", "operator": "", "value": "x"},
            {"key": "b", "operator": "Equal", "value": "x"},
            {"key": "a", "operator": "Exists"},
        ],
        affinity=required(other, [disk, zones | {"values": ["b", "a", "b"]}], other),
        nodeSelector={"l": "w", "k": "v"},
    )
    assert constraint_of(one) == constraint_of(same)
    differs = [
        pod(tolerations=[{"key": "a", "operator": "Exists"}]),
        pod(tolerations=[{"key": "a"}]),
        pod(affinity=required([zones, disk])),
        pod(affinity=required([zones], [disk])),
        one,
    ]
    assert len({constraint_of(each) for each in differs}) == len(differs)


@settings(max_examples=examples(40))
@given(
    st.dictionaries(
        st.sampled_from([names.ASKED_MILLI, names.ASKED_MEM_MIB, names.GANG, names.MODELS, names.ESTIMATE,
                         names.BURST, names.APPLICATION, "gpu-fraction", "gpu-memory"]),
        st.text(max_size=30) | st.integers(-(2**70), 2**70).map(str),
    ),
    st.dictionaries(
        st.sampled_from([names.RESOURCE, "cpu", "memory", "nvidia.com/gpu", "nvidia.com/gpumem", "x.y/z"]),
        st.text(max_size=8) | st.integers(0, 2**80).map(str) | st.sampled_from(["1", "100m", "8Gi", "1e300", "2E"]),
    ),
)  # fmt: skip
def test_no_words_at_all_crash_the_site(annotations: dict[str, str], resources: dict[str, str]) -> None:
    board = steered([], [pod(annotations, resources)])
    board.steps(2)
    assert len(board.site.entries) == 1


def test_quantities_are_those_of_kubernetes() -> None:
    assert [cpu_milli(text) for text in ("100m", "1.5", 2, "1e3", "0.0001")] == [
        100,
        1500,
        2000,
        1_000_000,
        1,
    ]
    assert [mem_mib(text) for text in ("1Gi", "500M", "1048577", "128974848", "1e9")] == [
        1024,
        477,
        2,
        123,
        954,
    ]
    assert mem_mib("1048577", down=True) == 1


def test_a_pod_takes_its_containers_or_what_starts_it_whichever_is_more() -> None:
    asked = pod(
        {},
        {"cpu": "1", "memory": "1Gi"},
        initContainers=[
            {"resources": {"requests": {"cpu": "500m"}}, "restartPolicy": "Always"},
            {"resources": {"requests": {"cpu": "3"}}},
        ],
        overhead={"memory": "100Mi"},
    )
    request = request_of(asked)
    assert (request.cpu_milli, request.host_mem_mib) == (3500, 1124)


def test_gangs_of_one_name_in_two_namespaces_are_two_gangs() -> None:
    one = request_of(pod({names.GANG: "train/2"}))
    other = pod({names.GANG: "train/2"})
    other.metadata.namespace = "m"
    assert one.gang == Gang("n", "train", 2)
    assert request_of(other).gang == Gang("m", "train", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
def test_mistakes_are_told_and_other_pods_placed(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 4)
        await world.pod("negative", milli=-1)
        await world.pod("units", mem="8Gi")
        await world.pod("huge", mem="9" * 400)
        await world.pod("model", annotations={names.MODELS: "B9000"})
        for at, namespace in enumerate(("default", "other")):
            for member in range(2):
                await world.pod(f"same-{at}{member}", milli=100, mem=1, namespace=namespace,
                                annotations={names.GANG: "same/2"})  # fmt: skip
        await world.pod("g-0", annotations={names.GANG: "g/2"})
        await world.pod("g-1", annotations={names.GANG: "g/3"})
        for at in range(64):
            await world.pod(f"selects-{at:02}", 0, nodeSelector={f"key-{at}": "x"})
        await world.pod("narrow", 0, nodeSelector={f"key-{at}": "x" for at in range(63)})
        await world.pod("good")
        async with world.steerer():
            await world.until_bound("good")
            assert "berth.dev/gpu-milli is '-1'" in await world.until_event("Held", "negative")
            assert "is '8Gi'" in await world.until_told("units", "annotation")
            assert "without a unit" in await world.until_event("Held", "huge")
            await world.until_bound(*(f"same-{at}{member}" for at in range(2) for member in range(2)))
            assert (
                await world.until_told("model", "B9000")
                == "no node can hold it: of 1 nodes, 1 no model B9000"
            )
            await world.until_told("g-1", "has size 3 here and 2 in its other pods")
            await world.until_told("narrow", "no label key-")
            await world.until_told("selects-00", "no label key-0=x")
            await world.until_told("selects-63", "no label key-63=x")
            await world.patch(
                "/api/v1/nodes/n1", {"metadata": {"labels": {f"key-{at}": "x" for at in range(64)}}}
            )
            await world.until_bound("narrow", *(f"selects-{at:02}" for at in range(64)))
            refused = sorted(about for about, _ in await world.events("Held"))
            assert refused == sorted(set(refused))  # an event each
        await world.check()

    play(test)


@pytest.mark.parametrize("number", ["--5", "²", "9" * 5000, "1.5", ""])
def test_an_affinity_that_compares_with_no_number_is_refused(number: str) -> None:
    term = {"matchExpressions": [{"key": "cards", "operator": "Gt", "values": [number]}]}
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    }
    with pytest.raises(AskError, match="node affinity Gt of 'cards' takes one whole number"):
        request_of(pod(affinity=affinity))


@pytest.mark.parametrize("label", ["--5", "²", "9" * 5000])
def test_a_label_that_is_no_number_is_neither_greater_nor_less(label: str) -> None:
    labelled = api.Node(api.Meta("n", labels={"cards": label}))
    for operator in ("Gt", "Lt"):
        term = {"matchExpressions": [{"key": "cards", "operator": operator, "values": ["1"]}]}
        affinity = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        }
        assert why_not(request_of(pod(affinity=affinity)).constraint, labelled)
