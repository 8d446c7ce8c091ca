"""What doctor shows to people."""

from doctor_run import facts as facts_of_goyal_8k
from doctor_run import goyal_8k, imagenet

from tf_goyal import cluster, doctor_facts, doctor_tables


def test_tables_for_people(capsys):
    facts = facts_of_goyal_8k()
    doctor_tables.show(facts, list_variables=True)
    text = capsys.readouterr().out
    assert "\x1b" not in text  # plain when not on a terminal
    for line in (
        "Deviations from the paper: none",
        "1 on each of 256 devices",
        "14,076",
        "156.39",
        "23.74 ± 0.09 % without deviations",
        "54 of 161 variables",
        "stem_conv/kernel",
        "97.5 MB",  # 25,557,032 · 4 / 2^20
        "1,281,167 images, 1,221.8 MB in 1,024 files of /images",
        "run (will be created)",
        "starts at step 0",
    ):
        assert line in text
    doctor_tables.show(facts)
    assert "stem_conv/kernel" not in capsys.readouterr().out


def test_deviations_are_shown_with_section_and_price(capsys):
    settings = goyal_8k(warmup="none")
    found = doctor_facts.deviations(settings, imagenet())
    doctor_tables.show(facts_of_goyal_8k() | {"deviations": found})
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "24.84" in x)
    assert line.startswith("warmup")
    for cell in ("§2.2", "over 5 epochs", "none", "instead of 23.74 ± 0.09 %"):
        assert cell in line


def test_a_layout_of_few_devices(capsys):
    layout = doctor_facts.layout(2, cluster.assign(7, 4))
    doctor_tables.show(facts_of_goyal_8k() | {"layout": layout})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    start = lines.index("Layout") + 1
    assert lines[start : start + 8] == [
        "processes 2",
        "devices per process 2",
        "virtual workers 2 on each of 3 devices, 1 on each of 1 device",
        "process 0, device 0 workers 0 to 0",
        "process 0, device 1 workers 1 to 2",
        "process 1, device 0 workers 3 to 4",
        "process 1, device 1 workers 5 to 6",
        "",
    ]


def test_texts_are_shown_as_they_are(capsys):
    """Neither an IPv6 address nor a folder is markup."""
    members = cluster.Cluster(("[::1]:2", "[bold]:3"), 1, (":smile:",))
    doctor_tables.show(facts_of_goyal_8k() | {"cluster": doctor_facts.cluster(members)})
    text = capsys.readouterr().out
    for part in ("[::1]:2", "[bold]:3 (this process)", ":smile:"):
        assert part in text


def test_the_proof_of_the_order(capsys):
    epoch = {"epoch": 1, "union": 6, "overlap": 1, "per_device": [2, 5]}
    proof = {"records": 7, "epochs": [epoch]}
    doctor_tables.show(facts_of_goyal_8k() | {"proof": proof})
    shown = "union 6 of 7 records, overlap 1; 2 to 5 a device"
    assert shown in capsys.readouterr().out
