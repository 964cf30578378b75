"""Slurm's host lists: its documentation's examples, round trips, and what cannot be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.launch.resolve.schedulers import LIMIT, expand_nodelist, expand_tasks_per_node
from slipway.protocol.errors import CONFIGURATION, LaunchError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu07", "gpu07"),
        ("lx[15,18,32-33]", "lx15 lx18 lx32 lx33"),  # slurm.conf(5), NodeName
        ("linux[00-03]", "linux00 linux01 linux02 linux03"),  # scontrol(1), show hostnames
        ("tux[1-3]", "tux1 tux2 tux3"),  # scontrol(1)
        ("n[1-3,7]", "n1 n2 n3 n7"),
        ("a[01-03]b", "a01b a02b a03b"),
        ("a[08-11]", "a08 a09 a10 a11"),
        ("a[8-11]", "a8 a9 a10 a11"),
        ("a[098-101]", "a098 a099 a100 a101"),
        ("a[1,1]", "a1 a1"),
        ("a[3,1]", "a3 a1"),
        ("rack[0-1]node[0-1]", "rack0node0 rack0node1 rack1node0 rack1node1"),  # slurm.conf(5): several brackets
        ("unit[0-1]rack[0]n[2-3]", "unit0rack0n2 unit0rack0n3 unit1rack0n2 unit1rack0n3"),
        ("[1-2]", "1 2"),
        ("login,gpu[1-2]", "login gpu1 gpu2"),
        ("gpu[07-08],login-a.site.org", "gpu07 gpu08 login-a.site.org"),
        ("a[1-2],b[1-2]", "a1 a2 b1 b2"),
        ("node-1-[1-2]", "node-1-1 node-1-2"),
        ("a[1-1]", "a1"),
        # As clusters write them: facebookresearch/gcm, shelper/testdata.
        ("node[1433,1787,1889-1890,1968-1969]", "node1433 node1787 node1889 node1890 node1968 node1969"),
        ("node[0201-0202,0281],node4180", "node0201 node0202 node0281 node4180"),
    ],
)
def test_host_lists_as_slurm_writes_them(text: str, hosts: str) -> None:
    assert expand_nodelist(text) == tuple(hosts.split())


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "a,", ",a", "a,,b", "a[", "a]", "a[]", "a[1", "a[1-", "a[1-]", "a[-1]", "a[2-1]", "a[1-2-3]", "a[x]",
        "a[1,]", "a[[1]]", "a[1]]", "a b", " a", "a[1 ,2]", "a[0-99999999999]", "a[1-65537]", "a[0-999]b[0-999]", "a[0-9999]b[0-9999]c[0-9999]",
        "a[1-40000],b[1-40000]", "\n", "a[1]\n",
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_what_to_type(text: str) -> None:
    with pytest.raises(LaunchError, match="--master-addr HOST") as caught:
        expand_nodelist(text)
    assert caught.value.code == CONFIGURATION
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a host name was expected at character 1"),
        ("ab,", "a host name was expected at character 4"),
        ("a,bcd,,e", "a host name was expected at character 7"),
        ("a b", "a comma was expected at character 2"),
        ("a,bcd]", "a comma was expected at character 6"),
        ("a[1-2-3]", "[1-2-3] is not a list of numbers and ranges"),
        ("a[2-1]", "2-1 is not a range that can be counted"),
        (f"a[1-{LIMIT + 1}]", f"1-{LIMIT + 1} is not a range that can be counted"),  # nor is it counted in vain
        ("a[1-40000],b[1-40000]", f"it names more than {LIMIT} hosts"),
    ],
)
def test_the_message_says_what_cannot_be_read_and_where(text: str, why: str) -> None:
    with pytest.raises(LaunchError) as caught:
        expand_nodelist(text)
    assert f" cannot be read: {why}. " in str(caught.value)


def test_a_long_list_is_cut_in_the_message() -> None:
    with pytest.raises(LaunchError) as caught:
        expand_nodelist("a," * 5000)
    assert f"{('a,' * 100)!r} cannot be read" in str(caught.value)


def test_slurms_own_limit_is_reached() -> None:
    assert len(expand_nodelist(f"a[1-{LIMIT}]")) == LIMIT


NAME = st.from_regex(r"[a-z][a-z0-9.-]{0,8}[a-z]", fullmatch=True)


@st.composite
def written(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A bracketed name as Slurm would write it, and the hosts that it stands for."""
    head, tail = draw(NAME), draw(st.one_of(st.just(""), NAME))
    parts, hosts = [], []
    for _ in range(draw(st.integers(1, 4))):
        first, count = draw(st.integers(0, 2000)), draw(st.integers(1, 30))
        width = draw(st.integers(len(str(first)), 5))
        parts.append(f"{first:0{width}d}" if count == 1 else f"{first:0{width}d}-{first + count - 1:0{width}d}")
        hosts += [f"{head}{number:0{width}d}{tail}" for number in range(first, first + count)]
    return f"{head}[{','.join(parts)}]{tail}", hosts


@given(st.lists(written(), min_size=1, max_size=4))
def test_what_was_compressed_comes_back(names: list[tuple[str, list[str]]]) -> None:
    assert expand_nodelist(",".join(text for text, _ in names)) == tuple(host for _, hosts in names for host in hosts)


@given(st.lists(NAME, min_size=1))
def test_plain_names_stay_as_they_are(names: list[str]) -> None:
    assert expand_nodelist(",".join(names)) == tuple(names)


@given(st.text(st.sampled_from("ab1-,[]. "), max_size=20))
def test_any_text_gives_hosts_or_an_error_for_people(text: str) -> None:
    try:
        hosts = expand_nodelist(text)
    except LaunchError:
        return
    assert all(hosts)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4(x2)", [4, 4]), ("1,2,3", [1, 2, 3]),  # srun(1), SLURM_TASKS_PER_NODE
        ("", []), ("x", []), ("2(xa)", []), ("2(x99999999)", []), ("2,", []),
        (f"1(x{LIMIT})", [1] * LIMIT), (f"1(x{LIMIT + 1})", []),
    ],
)  # fmt: skip
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert expand_tasks_per_node(text) == counts
