"""Ask Apache Kafka's own classes for the results that muster's assignors and consumer protocol are checked against.

    python tests/oracle/make_assignor_cases.py

writes tests/oracle/assignor_cases.json and tests/wire/consumer_protocol.json again. It needs a JDK and Kafka's jars
(tests/support/peers.py finds or fetches them). The questions and the answers are the same on every run: the random part
has a fixed seed. The answers are stored so that the tests need no Java.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from muster.assignors.previous import encode_previous_assignment  # noqa: E402
from muster.model import TopicPartition  # noqa: E402
from tests.support.peers import find_java, kafka_classpath, require  # noqa: E402

SEED = 20130101
Case = dict[str, Any]


def ask(questions: list[Case]) -> list[Any]:
    """One JSON line to Kafka for each question, one line back."""
    java = require("Java 17 or newer", find_java())
    source = Path(__file__).parent / "java" / "AssignorOracle.java"
    command = [
        java,
        f"-Dlog4j2.configurationFile={ROOT / 'tests/peers/kafka/log4j2.xml'}",
        "-cp",
        kafka_classpath(),
        str(source),
    ]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions), "Kafka did not answer every question"
    return answers


def spans(topics: dict[str, list[int]]) -> str:
    """{"a": [0, 1, 2, 5]} as "a:0-2,5"."""
    return " ".join(f"{topic}:{_runs(sorted(numbers))}" for topic, numbers in sorted(topics.items()))


def _runs(numbers: list[int]) -> str:
    runs = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(runs)


def random_group(draw: random.Random, *, equal: bool, most: int) -> Case:
    """Topics (one of those subscribed to may not exist) and members, some of them static."""
    names = [f"t{number}" for number in range(draw.randint(1, 5))]
    width = draw.choice([0, draw.randint(1, 12)])
    topics = {name: width or draw.randint(1, 12) for name in names}
    known = [*names, "missing"] if draw.random() < 0.2 else names
    members: Case = {}
    wanted = draw.sample(known, k=draw.randint(1, len(known)))
    for number in draw.sample(range(100), k=draw.randint(1, most)):
        if not equal:
            wanted = draw.sample(known, k=draw.randint(0, len(known)))
        members[f"m{number}"] = {"topics": wanted}
        if draw.random() < 0.3:
            members[f"m{number}"]["instance"] = f"i{100 - number}"
    return {"topics": topics, "members": members}


def exact_cases(draw: random.Random) -> list[Case]:
    """Fresh groups and what Kafka's assignors give each member; sticky only if its result leaves no choice."""
    groups = [(random_group(draw, equal=number % 2 == 0, most=8), number % 2 == 0) for number in range(120)]
    questions = [
        {"ask": "assign", "assignor": assignor, **group}
        for group, equal in groups
        for assignor in ("range", "roundrobin", *(("sticky", "cooperative-sticky") if equal else ()))
    ]
    cases: list[Case] = []
    for question, answer in zip(questions, ask(questions), strict=True):
        expected = {member: spans(topics) for member, topics in sorted(answer.items())}
        kept = {key: question[key] for key in ("topics", "members")}
        if not cases or cases[-1]["topics"] is not question["topics"]:
            cases.append({**kept, "expected": {}})
        cases[-1]["expected"][question["assignor"]] = expected
    return cases


def claimed(draw: random.Random, group: Case) -> Case:
    """The group with a past: who owned what, before members came and went and a topic was deleted."""
    crowd = draw.sample(list(group["members"]), k=draw.randint(1, len(group["members"])))
    owners: dict[str, dict[str, list[int]]] = {name: {} for name in group["members"]}
    for topic, count in {**group["topics"], "deleted": 3}.items():
        for number in range(count):
            if draw.random() < 0.85:
                owners[draw.choice(crowd)].setdefault(topic, []).append(number)
    members = {
        name: {**member, "owned": owners[name], "generation": draw.choice([4, 5, 5, 5])}
        for name, member in group["members"].items()
    }
    return {"topics": group["topics"], "members": members}


def sticky_cases(draw: random.Random) -> list[Case]:
    """Groups with a past, how evenly Kafka's sticky loads them (sum of squares) and how much it leaves in place."""
    cases = [claimed(draw, random_group(draw, equal=number % 2 == 0, most=8)) for number in range(120)]
    questions = []
    for case in cases:
        members = {
            name: {"topics": member["topics"], "user_data": user_data(member)}
            for name, member in case["members"].items()
        }
        questions.append({"ask": "assign", "assignor": "sticky", "topics": case["topics"], "members": members})
    answered = [pair for pair in zip(cases, ask(questions), strict=True) if is_sound(*pair)]
    for case, answer in answered:
        note_loads(case, answer)
    return [case for case, _ in answered]


def with_racks(draw: random.Random, group: Case) -> Case:
    """The group in a cluster of up to four racks; not every member says which rack it is in."""
    racks = [f"r{number}" for number in range(draw.randint(1, 4))]
    known = [*racks, "elsewhere"] if draw.random() < 0.2 else racks
    told = draw.choice([1.0, 1.0, 0.6])
    replicas = draw.randint(1, len(racks))
    seats = {
        topic: [sorted(draw.sample(racks, k=replicas)) for _ in range(count)]
        for topic, count in group["topics"].items()
    }
    if draw.random() < 0.2:
        seats = {topic: row if draw.random() < 0.7 else [] for topic, row in seats.items()}
    members = {
        name: {**member, "rack": draw.choice(known)} if draw.random() < told else member
        for name, member in group["members"].items()
    }
    return {"topics": group["topics"], "racks": seats, "members": members}


def fresh_rack_cases(draw: random.Random) -> list[Case]:
    """Fresh groups with racks, and what Kafka gives each member; sticky only if its result leaves no choice."""
    cases = []
    for number in range(120):
        equal = number % 2 == 0
        case = with_racks(draw, random_group(draw, equal=equal, most=8))
        asked = ("range", "roundrobin", *(("sticky", "cooperative-sticky") if equal else ()))
        cases.append({**case, "expected": dict.fromkeys(asked)})
    questions = [
        {"ask": "assign", "assignor": assignor, **{key: case[key] for key in ("topics", "racks", "members")}}
        for case in cases
        for assignor in case["expected"]
    ]
    answers = iter(ask(questions))
    for case in cases:
        for assignor in case["expected"]:
            case["expected"][assignor] = {member: spans(topics) for member, topics in sorted(next(answers).items())}
    return cases


def past_rack_cases(draw: random.Random) -> list[Case]:
    """Groups with racks and a past: how evenly Kafka's sticky loads them, how many partitions are not in their member's
    rack, and how many stay."""
    cases, questions = [], []
    for number in range(120):
        fresh = with_racks(draw, random_group(draw, equal=number % 2 == 0, most=8))
        case = {**claimed(draw, fresh), "racks": fresh["racks"]}
        members = {
            name: {key: member[key] for key in ("topics", "rack") if key in member} | {"user_data": user_data(member)}
            for name, member in case["members"].items()
        }
        cases.append(case)
        questions.append({"ask": "assign", "assignor": "sticky", **case, "members": members})
    answered = [pair for pair in zip(cases, ask(questions), strict=True) if is_sound(*pair)]
    for case, answer in answered:
        note_loads(case, answer)
        case["far"] = sum(
            case["racks"][topic][number : number + 1] not in ([], [[]]) and rack not in case["racks"][topic][number]
            for name, given in answer.items()
            if (rack := case["members"][name].get("rack"))
            for topic, numbers in given.items()
            for number in numbers
        )
    return [case for case, _ in answered]


def user_data(member: Case) -> str:
    """The user data that a member with this past sends."""
    owned = [TopicPartition(topic, number) for topic, row in member["owned"].items() for number in row]
    return encode_previous_assignment(owned, member["generation"]).hex()


def note_loads(case: Case, answer: Case) -> None:
    """Note how even an answer is, how much it leaves in place, and the past as text."""
    loads = [sum(len(numbers) for numbers in topics.values()) for topics in answer.values()]
    case["squares"] = sum(load * load for load in loads)
    case["kept"] = sum(
        len(set(numbers) & set(answer[name].get(topic, [])))
        for name, member in case["members"].items()
        for topic, numbers in member["owned"].items()
    )
    for member in case["members"].values():
        member["owned"] = spans(member["owned"])


def is_sound(case: Case, answer: Case | None) -> bool:
    """Whether Kafka found an answer worth comparing with.

    4.2 fails on some groups (see AssignorOracle.java), and if the first member it looks at has no topics, it mistakes
    the next member's topics for everyone's and assigns partitions of topics that a member never asked for.
    """
    return answer is not None and all(
        set(given) <= set(case["members"][name]["topics"]) for name, given in answer.items()
    )


def protocol_facts() -> Case:
    """Bytes that Kafka's ConsumerProtocol and sticky assignors write."""
    owned = [["orders", 3], ["clicks", 1], ["orders", 0]]
    full = {"topics": ["orders", "clicks"], "owned": owned, "generation": 7, "rack": "r1", "user_data": "00ff"}
    bare = {"topics": ["clicks"]}
    questions: list[Case] = []
    for version in range(4):
        questions += ({"ask": "subscription", "version": version, **fields} for fields in (full, bare))
        questions += (
            {"ask": "assignment", "version": version, "owned": pairs, **extra}
            for pairs, extra in ((owned, {"user_data": "0102"}), ([], {}))
        )
    questions += (
        {"ask": "user data", "assignor": assignor, "owned": pairs, "generation": 9}
        for assignor in ("sticky", "cooperative-sticky")
        for pairs in ([["orders", 3], ["orders", 0]], owned, [])
    )
    return {"facts": [{**question, "hex": answer} for question, answer in zip(questions, ask(questions), strict=True)]}


def write(path: Path, sections: dict[str, list[Case]]) -> None:
    """JSON with one case a line, so that a changed case is a changed line."""
    parts = []
    for name, cases in sections.items():
        body = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        parts.append(f"{json.dumps(name)}:[\n{body}\n]")
    path.write_text("{" + ",\n".join(parts) + "}\n")
    print(f"wrote {path.relative_to(ROOT)}: {', '.join(f'{len(cases)} {name}' for name, cases in sections.items())}")


def main() -> None:
    draw = random.Random(SEED)
    cases = {"exact": exact_cases(draw), "sticky": sticky_cases(draw)}
    cases |= {"racks": fresh_rack_cases(draw), "racks with a past": past_rack_cases(draw)}
    write(ROOT / "tests" / "oracle" / "assignor_cases.json", cases)
    write(ROOT / "tests" / "wire" / "consumer_protocol.json", protocol_facts())


if __name__ == "__main__":
    main()
