"""The loader: traps of YAML, places, suggestions, one camera's error against the whole file's."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from vidserve.config import Config, LoadResult, load

MINIMAL = "cameras:\n  gate: {source: clip.mp4}\n"


def loaded(tmp_path: Path, text: str | bytes, **environ: str) -> LoadResult:
    file = tmp_path / "site.yaml"
    file.write_bytes(_plain(text))
    return load(file, environ)


def lines(tmp_path: Path, text: str | bytes, **environ: str) -> list[str]:
    """The problems without the file's name."""
    result = loaded(tmp_path, text, **environ)
    return [str(problem).removeprefix(f"{result.file}:") for problem in result.problems]


def _plain(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def good(tmp_path: Path, text: str, **environ: str) -> Config:
    result = loaded(tmp_path, text, **environ)
    assert not result.problems, [str(problem) for problem in result.problems]
    assert result.config is not None
    return result.config


def camera_block(key_value: str) -> str:
    return f"cameras:\n  gate:\n    source: clip.mp4\n    {key_value}\n"


def test_minimal_file_has_the_defaults(tmp_path: Path) -> None:
    config = good(tmp_path, MINIMAL)
    assert config.detector.model == "yolo26n.pt"
    assert config.detector.image_size == (640,)
    assert config.scheduling.budget_ms == 33
    assert config.scheduling.batch.target == 4
    assert config.outputs == ()
    assert config.mqtt is None
    assert config.camera("gate").source == str(tmp_path / "clip.mp4")
    assert config.base_dir == tmp_path


def test_the_example_of_the_design(tmp_path: Path) -> None:
    config = good(
        tmp_path,
        """\
detector:
  model: yolo26n.pt            # a comment
  device: auto
  image_size: [640, 480, 320]
  confidence: 0.35
  classes: [person, car]
scheduling: {budget_ms: 33, keyframe_interval: 5, max_gap_s: 2,
             batch: {target: 4, max: 8, wait_ms: 15, max_pixels: 3276800}}
mqtt: {host: localhost, port: 1883, username: vidserve, password: "${MQTT_PASSWORD}"}
outputs: [mqtt, {jsonl: out.jsonl}]
history: {path: h.db, keep_days: 30}
stats: {interval_s: 5}
tracking: {lost_s: 2, history_s: 1, flow: true}
web: {host: 127.0.0.1, port: 8080}
cameras:
  gate:
    source: rtsp://10.0.0.5/stream1
    username: viewer
    password: "${GATE_PASSWORD}"
    confidence: {person: 0.5}
    ignore: [[[0, 0], [1, 0], [1, 0.2], [0, 0.2]]]
  yard:
    source: /dev/video0
    weight: 2
  lobby:
    source: clip.mp4
    loop: false
""",
        MQTT_PASSWORD="one",
        GATE_PASSWORD="two",
    )
    assert list(config.cameras) == ["gate", "yard", "lobby"]
    assert config.mqtt is not None and config.mqtt.password is not None
    assert config.mqtt.password.get_secret_value() == "one"
    gate = config.camera("gate")
    assert gate.password is not None and gate.password.get_secret_value() == "two"
    assert list(gate.own.ignore[0]) == [(0, 0), (1, 0), (1, 0.2), (0, 0.2)]
    assert config.camera("yard").own.weight == 2
    assert config.camera("yard").source == "/dev/video0"
    assert config.camera("yard").reader == "opencv"


# ---- YAML's surprises -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    "on|off|yes|no|y|n|12:30|010|1e3|0x1F|1_000|.inf|2024-01-01|true|12|1.10|0123|null1|~x|café|"
    "Hof 2|=|0b11|0o7|-0|.5|5.|<|2001-12-14t21:59:43.10-05:00".split("|"),
)
def test_words_of_yaml_1_1_stay_text_where_text_is_wanted(tmp_path: Path, word: str) -> None:
    config = good(
        tmp_path,
        f"cameras:\n  {word}:\n    source: rtsp://h/1\n    username: {word}\n"
        f"    password: {word}\n    classes: [{word}]\n    confidence: {{{word}: 0.5}}\n",
    )
    camera = config.camera(word)
    assert camera.username == word
    assert camera.password is not None and camera.password.get_secret_value() == word
    assert camera.classes == (word,)
    assert camera.confidence(word) == 0.5


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("010", "this is 8 to some and 10 to others: write 8 or 10"),
        ("09", "write it without leading zeros"),
        ("0x1F", "hexadecimal is not taken (did you mean 31?)"),
        ("0o17", "did you mean 15?"),
        ("0b101", "did you mean 5?"),
        ("1_000", "did you mean 1000?"),
        ("1e3", "did you mean 1000?"),
        ("12:30", "base 60"),
        ("on", "must be a whole number, but is on"),
        ("no", "must be a whole number, but is no"),
        ("true", "must be a whole number, but is true"),
        (".inf", "finite"),
        (".nan", "finite"),
        ("2.5", "no fraction"),
        ("5ms", "is 5 meant?"),
        ('"5"', "text in quotes (did you mean 5 without quotes?)"),
        ("'x'", "text in quotes"),
        ("", "is empty"),
        ("~", "is empty"),
        ("null", "is empty"),
        ("[5]", "but is a list"),
        ("{a: 5}", "but is a mapping"),
        ("2001-01-01", "must be a whole number"),
        ("٣", "must be a whole number"),
        ("9" * 5000, "too long"),
        ("-1", "must be at least 1, but is -1"),
        ("1001", "must be at most 1000, but is 1001"),
    ],
)
def test_a_number_with_two_meanings_is_refused(tmp_path: Path, word: str, says: str) -> None:
    [line] = lines(tmp_path, f"scheduling:\n  keyframe_interval: {word}\n")
    assert line.startswith("2:")
    assert "scheduling.keyframe_interval: " in line
    assert says in line


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("0,5", "did you mean 0.5?"),
        ("35", "must be at most 1, but is 35 (did you mean 0.35?)"),
        ("35%", "is 35 meant?"),
        ("0", "must be more than 0"),
        ("5e-1", "did you mean 0.5?"),
        ("00.5", "leading zeros"),
        ("high", "must be a number, but is high"),
    ],
)
def test_a_share_that_is_none(tmp_path: Path, word: str, says: str) -> None:
    [line] = lines(tmp_path, f"detector:\n  confidence: {word}\n")
    assert line.startswith("2:15: detector.confidence: ")
    assert says in line


@pytest.mark.parametrize("word", ["0.5", ".5", "0.50", "+0.5"])
def test_decimal_numbers_are_taken(tmp_path: Path, word: str) -> None:
    assert good(tmp_path, f"detector: {{confidence: {word}}}\n").detector.confidence == 0.5


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("on", "(did you mean true?)"),
        ("yes", "(did you mean true?)"),
        ("y", "(did you mean true?)"),
        ("True", "(did you mean true?)"),
        ("1", "(did you mean true?)"),
        ("off", "(did you mean false?)"),
        ("No", "(did you mean false?)"),
        ("n", "(did you mean false?)"),
        ("0", "(did you mean false?)"),
        ('"true"', "is true in quotes (did you mean true?)"),
        ("maybe", "must be true or false, but is maybe"),
        ("", "but is empty"),
    ],
)
def test_a_flag_is_true_or_false(tmp_path: Path, word: str, says: str) -> None:
    [line] = lines(tmp_path, camera_block(f"realtime: {word}"))
    assert line.startswith("4:") and "cameras.gate.realtime: must be true or false" in line
    assert says in line


def test_repeated_keys_name_both_lines(tmp_path: Path) -> None:
    text = "stats: {interval_s: 5}\ncameras:\n  a: {source: x.mp4}\nstats: {interval_s: 6}\n"
    assert lines(tmp_path, text) == ["4:1: stats: repeated key: first given in line 1"]


def test_a_second_camera_of_the_same_name_never_wins(tmp_path: Path) -> None:
    text = "cameras:\n  a: {source: x.mp4}\n  b: {source: y.mp4}\n  a: {source: z.mp4}\n"
    result = loaded(tmp_path, text)
    [problem] = result.problems
    assert (problem.line, problem.column, problem.camera) == (4, 3, "a")
    assert "first given in line 2" in problem.message
    assert result.config is not None and list(result.config.cameras) == ["b"]


def test_tags_are_refused_where_they_stand(tmp_path: Path) -> None:
    text = "cameras:\n  a: {source: !!str 1}\n  b: {source: y.mp4}\n  c: {source: !x y}\n"
    result = loaded(tmp_path, text)
    assert [(p.line, p.column, p.key) for p in result.problems] == [
        (2, 15, "cameras.a.source"),
        (4, 15, "cameras.c.source"),
    ]
    assert all("a tag" in problem.message for problem in result.problems)
    assert result.config is not None and list(result.config.cameras) == ["b"]
    assert "a tag" in lines(tmp_path, "!!map {stats: {}}\n")[0]
    assert "a tag" in lines(tmp_path, "!a stats: {}\n")[0]
    assert "a tag" in lines(tmp_path, "stats: !!python/object/apply:os.system [ls]\n")[0]


@pytest.mark.parametrize(
    ("text", "start", "says"),
    [
        ("stats: {}\n---\ncameras: {}\n", "2:1: ", "second document"),
        ("stats:\n\tinterval_s: 5\n", "2:1: ", "tab"),
        ("stats: {interval_s: 5\ncameras: {}\n", "2:", "cannot be read|missing|not allowed|fit"),
        ("a: b: c\n", "1:5: ", "':' is not allowed here"),
        ("a: 'b\n", "2:1: ", "never closed"),
        ('a: "\\q"\n', "1:6: ", "begins an escape"),
        ("a: @b\n", "1:4: ", "needs quotes"),
        ("a: %b\n", "1:4: ", "needs quotes"),
        ("a: *b\n", "1:4: ", "alias"),
        ("- a\n- b\n", "1:1: ", "must be a mapping"),
        ("just text\n", "1:1: ", "must be a mapping"),
        ("", "1:1: ", "is empty"),
        ("# nothing\n", "1:1: ", "is empty"),
        ("~\n", "1:1: ", "is empty"),
        ("? [a, b]\n: c\n", "1:3: ", "a key must be a single value"),
        ('a: "\\UFFFFFFFF"\n', "1:", "cannot be read"),
        ("%YAML 9" + "9" * 5000 + ".1\n--- a\n", "1:", "cannot be read"),
        ("a: \x01\n", "1:4: ", "character"),
        ('stats: "\\0"\n', "1:8: ", "NUL"),
        ('stats: "\\uD800"\n', "1:8: ", "UTF-8"),
        ('"\\uD800": 1\n', "1:1: ", "surrogate"),
        ("cameras: {a: {source: x, password: ${P}}}\n", "1:", "in quotes"),
    ],
)  # fmt: skip
def test_broken_text_has_one_problem_with_its_place(
    tmp_path: Path, text: str, start: str, says: str
) -> None:
    result = loaded(tmp_path, text)
    line = str(result.problems[0]).removeprefix(f"{result.file}:")
    assert line.startswith(start), line
    assert re.search(says, line), line
    assert result.config is None


def test_not_utf_8_is_named_with_its_place(tmp_path: Path) -> None:
    [line] = lines(tmp_path, b"stats: {}\nx: caf" + b"\xe9\n")
    assert line.startswith("2:7: ") and "UTF-8" in line
    [line] = lines(tmp_path, "stats: {}\n".encode("utf-16"))
    assert "UTF-8" in line


def test_a_byte_order_mark_is_harmless(tmp_path: Path) -> None:
    assert lines(tmp_path, b"\xef\xbb\xbf" + MINIMAL.encode()) == []


def test_unreadable_files(tmp_path: Path) -> None:
    missing = load(tmp_path / "none.yaml", {})
    assert str(missing.problems[0]).endswith("none.yaml:1:1: file: cannot be read: "
                                             "No such file or directory")  # fmt: skip
    assert missing.config is None
    assert "directory" in str(load(tmp_path, {}).problems[0])
    assert "not a path" in str(load("a\0b", {}).problems[0])


def test_endless_nesting_and_large_files(tmp_path: Path) -> None:
    assert "nested deeper" in lines(tmp_path, "a: " + "[" * 100_000)[0]
    assert "nested deeper" in lines(tmp_path, "a: " + "{b: " * 100_000)[0]
    assert "nested deeper" in lines(tmp_path, "\n".join(" " * i + "a:" for i in range(500)))[0]
    assert "larger than" in lines(tmp_path, b"#" * (2 << 20))[0]
    assert "values" in lines(tmp_path, "a: [" + "1," * 30_000 + "]\n")[0]


def test_alias_bombs_and_circles(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for i in range(1, 12):
        rows.append(f"a{i}: &a{i} [" + ", ".join([f"*a{i - 1}"] * 9) + "]")
    began = time.monotonic()
    assert "aliases followed" in lines(tmp_path, "\n".join(rows))[0]
    merges = ["a0: &a0 {x: 1}"]
    for i in range(1, 30):
        merges.append(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}")
    assert lines(tmp_path, "\n".join(merges))
    assert time.monotonic() - began < 20
    assert "alias of itself" in lines(tmp_path, "a: &a [*a]\n")[0]
    assert "merges itself" in lines(tmp_path, "a: &a {<<: *a}\n")[0]


def test_anchors_and_merge_keys_mean_what_they_should(tmp_path: Path) -> None:
    config = good(
        tmp_path,
        """\
cameras:
  a: &a
    source: a.mp4
    weight: 2
    classes: &few [person]
  b:
    weight: 3
    <<: *a
    source: b.mp4
  c:
    <<: [{fps: 5}, *a, {weight: 9, fps: 6}]
    classes: *few
""",
    )
    b, c = config.cameras["b"], config.cameras["c"]
    assert (b.weight, str(b.source), b.classes) == (3, "b.mp4", ("person",))
    assert (c.weight, str(c.source), c.fps) == (2, "a.mp4", 5)


def test_merge_keys_that_are_none(tmp_path: Path) -> None:
    [line] = lines(tmp_path, "cameras:\n  a:\n    source: x.mp4\n    <<: 5\n")
    assert line.startswith("4:9: cameras.a.<<: a merge takes an alias")
    text = "cameras:\n  a: &a {source: x.mp4}\n  b: {<<: *a, <<: *a}\n"
    [line] = lines(tmp_path, text)
    assert line.startswith("3:15: cameras.b.<<: repeated key")


def test_an_error_in_a_merged_value_is_the_error_of_each_camera(tmp_path: Path) -> None:
    text = "cameras:\n  a: &a\n    source: x.mp4\n    fps: on\n  b:\n    <<: *a\n    fps: 5\n"
    result = loaded(tmp_path, text)
    assert list(result.failed_cameras) == ["a"]
    assert result.config is not None and list(result.config.cameras) == ["b"]
    result = loaded(tmp_path, text.replace("    fps: 5\n", ""))
    assert list(result.failed_cameras) == ["a", "b"]
    assert [problem.line for problem in result.problems] == [4, 4]


# ---- whose error is it ------------------------------------------------------------------------


def test_one_bad_camera_leaves_the_others(tmp_path: Path) -> None:
    result = loaded(
        tmp_path,
        "cameras:\n  a: {source: a.mp4}\n  b: {source: b.mp4, fsp: 5}\n  c: {weight: -1}\n  d:\n",
    )
    assert result.config is not None and list(result.config.cameras) == ["a"]
    assert list(result.failed_cameras) == ["b", "c", "d"]
    assert [str(p).removeprefix(f"{result.file}:") for p in result.problems] == [
        "3:22: cameras.b.fsp: unknown key (did you mean fps?)",
        "4:3: cameras.c.source: is missing",
        "4:15: cameras.c.weight: must be at least 0, but is -1",
        "5:3: cameras.d.source: is missing",
    ]
    assert {problem.camera for problem in result.problems} == {"b", "c", "d"}


def test_any_other_error_refuses_all_and_everything_is_said_at_once(tmp_path: Path) -> None:
    result = loaded(
        tmp_path,
        "detecter: {}\nstats: {interval_s: 0}\ncameras:\n  a: {source: a.mp4, loop: on}\n"
        "tracking: 5\n",
    )
    assert result.config is None
    assert [problem.key for problem in result.problems] == [
        "detecter",
        "stats.interval_s",
        "cameras.a.loop",
        "tracking",
    ]
    assert list(result.failed_cameras) == ["a"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("detektor: {}\n", "1:1: detektor: unknown key (did you mean detector?)"),
        (
            "confidence: 0.5\n",
            "1:1: confidence: unknown key (did you mean detector.confidence or "
            "cameras.<name>.confidence?)",
        ),
        ("mqtt: {hots: x}\n", "1:8: mqtt.hots: unknown key (did you mean host?)"),
        (
            "scheduling: {batch: {maximum: 5}}\n",
            "1:22: scheduling.batch.maximum: unknown key (did you mean max?)",
        ),
        ("mqtt: {tls: {caa: x}}\n", "1:14: mqtt.tls.caa: unknown key (did you mean ca?)"),
        ("stats: {zzz: 5}\n", "1:9: stats.zzz: unknown key (known: interval_s)"),
        ("outputs: [mqqt]\n", "1:11: outputs[0]: must be mqtt, but is mqqt (did you mean mqtt?)"),
        ("base_dir: x\n", "1:1: base_dir: unknown key"),
        (
            "detector: {backend: Torch}\n",
            "1:21: detector.backend: must be auto or torch, but is Torch (did you mean torch?)",
        ),
        (
            "detector: {device: cdua}\n",
            "1:20: detector.device: must be one of auto, cpu, cuda, mps, intel:cpu, intel:gpu, "
            "intel:npu or cuda:N (did you mean cuda?)",
        ),
        ("detector: {device: 0}\n",
         "1:20: detector.device: is a bare number (did you mean cuda:0?)"),
        ("detector: {classes: person}\n",
         "1:21: detector.classes: must be a list (did you mean [person]?)"),
        ("detector: {classes: []}\n",
         "1:21: detector.classes: must not be an empty list: fill it or remove the key"),
        ("detector: {classes: [a, b, a]}\n", "1:21: detector.classes: names one of them twice"),
        ("detector: {image_size: 650}\n",
         "1:24: detector.image_size: must be a multiple of 32 (did you mean 640?)"),
        ("detector: {image_size: [320, 640]}\n", "1:24: detector.image_size: must be largest "
         "first, each once (did you mean [640, 320]?)"),
        ("detector: {image_size: [640, 8192]}\n",
         "1:30: detector.image_size[1]: must be at most 4096, but is 8192"),
        ("detector: {buckets: [640]}\n",
         "1:22: detector.buckets[0]: must be width x height such as 640x384, but is 640"),
        ("detector: {buckets: [640x380]}\n",
         "1:22: detector.buckets[0]: must have sides that are multiples of 32, 32 to 4096, but is "
         "640x380"),
        ("detector: {buckets: 640x384}\n",
         "1:21: detector.buckets: must be a list (did you mean [640x384]?)"),
        ("detector: {buckets: [640x384]}\nscheduling: {batch: {max_pixels: 200000}}\n",
         "1:11: detector: holds buckets of which the smallest, 640x384, has 245760 pixels: more "
         "than scheduling.batch.max_pixels, 200000"),
        ("detector: {confidence: {person: 2}}\n", "1:33: detector.confidence.person: must be at "
         "most 1, but is 2 (did you mean 0.02?)"),
        ("detector: {confidence: [0.5]}\n",
         "1:24: detector.confidence: must be a number, but is a list"),
        ("scheduling: {batch: {target: 9}}\n",
         "1:30: scheduling.batch.target: must be at most max (8)"),
        ("mqtt:\n", "1:6: mqtt: is empty: write {} for its defaults, or remove it"),
        ("outputs: [mqtt]\n", "1:10: outputs: lists mqtt, but there is no mqtt section (mqtt: "
         "{host: localhost} or mqtt: {embedded: true})"),
        ("mqtt: {}\noutputs: [mqtt, mqtt]\n", "2:10: outputs: names one output twice"),
        ("cameras: [a]\n", "1:10: cameras: must be a mapping (key: value), but is a list"),
        ("history: {}\n", "1:1: history.path: is missing"),
    ],
)  # fmt: skip
def test_exact_sentences_of_the_whole_config(tmp_path: Path, text: str, line: str) -> None:
    found = lines(tmp_path, text)
    assert [x for x in found if not x.startswith(line)] == [], found
    assert len(found) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("reader: pyva", "4:13: reader: must be auto or rtsp or pyav or opencv or "
         "synthetic, but is pyva "
         "(did you mean pyav?)"),
        ("transport: TCP", "4:16: transport: must be tcp or udp, but is TCP (did you mean tcp?)"),
        ("publish: on", "4:14: publish: must be every_frame or on_change, but is on"),
        ("publish: {max_per_s: 0}", "4:26: publish.max_per_s: must be more than 0, but is 0"),
        ("publish: {}", "4:5: publish.max_per_s: is missing"),
        ("crop: [0, 0, 1]", "4:11: crop: must be [x1, y1, x2, y2], but has 3 items"),
        ("crop: [0.5, 0, 0.2, 1]", "4:11: crop: must be [x1, y1, x2, y2] with x1 < x2"),
        ("ignore: [[[0, 0], [1, 1]]]", "4:14: ignore[0]: must have at least 3 items, but has 2"),
        ("ignore: [[0, 0], [1, 1], [0, 1]]", "4:13: ignore: must be a list of polygons"),
        ("ignore: [[[0, 0], [1, 1], [0, 2]]]",
         "4:35: ignore[0][2][1]: must be at most 1, but is 2"),
        ("ignore: [[[0, 0], [1, 1], [1, 0], [0, 1]]]",
         "4:14: ignore[0]: the polygon crosses itself near (0.5, 0.5)"),
        ("ignore: [[[0, 0], [1, 1], [0.5, 0.5]]]", "4:14: ignore[0]: the polygon has no area"),
        ("ignore: [[[0, 0], [0, 0], [0, 0]]]", "4:14: ignore[0]: the polygon has no area"),
        ("password_file: none", "4:20: password_file: needs a username beside it"),
        ("password: x", "4:15: password: needs a username beside it"),
        ("reader: synthetic", "4:13: reader: synthetic cannot read this source: write auto"),
        ("reader: rtsp", "4:13: reader: rtsp reads rtsp:// over tcp only: write auto"),
        ('classes: ["a\\nb"]', "4:15: classes[0]: holds a control character"),
        ('classes: [""]', "4:15: classes[0]: must not be empty"),
        ("stall_s: 0", "4:14: stall_s: must be at least 0.1, but is 0"),
    ],
)  # fmt: skip
def test_exact_sentences_of_a_camera(tmp_path: Path, text: str, line: str) -> None:
    place, _, rest = line.partition(" ")
    result = loaded(tmp_path, camera_block(text))
    [found] = result.problems
    assert str(found).removeprefix(f"{result.file}:").startswith(f"{place} cameras.gate.{rest}")
    assert found.camera == "gate"
    assert result.config is not None and not result.config.cameras


@pytest.mark.parametrize(
    "name",
    "|a/b|a+b|Hof #2|$SYS| a|a |a\\nb|a\\tb|a\\u200bb|status|info|stats|set|state|response|health|"
    "Status|xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".split("|"),
)
def test_names_that_cannot_be_a_topic_level_refuse_the_config(tmp_path: Path, name: str) -> None:
    result = loaded(tmp_path, f'cameras:\n  good: {{source: x}}\n  "{name}": {{source: y}}\n')
    [problem] = result.problems
    assert (problem.line, problem.column, problem.camera) == (3, 3, None)
    assert result.config is None
    assert "\n" not in str(problem)


@pytest.mark.parametrize("pair", [("Gate", "gate"), ("caf\u00e9", "cafe\u0301"), ("ß", "SS")])
def test_names_that_clash_refuse_the_config(tmp_path: Path, pair: tuple[str, str]) -> None:
    result = loaded(tmp_path, f"cameras:\n  {pair[0]}: {{source: x}}\n  {pair[1]}: {{source: y}}\n")
    [problem] = result.problems
    assert "(line 2) differ only by case" in problem.message
    assert problem.line == 3 and result.config is None


@pytest.mark.parametrize(
    ("prefix", "fine"),
    [("a", True), ("site/hall 2", True)]
    + [(word, False) for word in ("/a", "a/", "a//b", "a/+", "'#'", "$a", "''", "'a '", "a/ b")],
)
def test_prefixes(tmp_path: Path, prefix: str, fine: bool) -> None:
    found = lines(tmp_path, f"mqtt:\n  prefix: {prefix}\n")
    assert (not found) if fine else found[0].startswith("2:11: mqtt.prefix: ")


@pytest.mark.parametrize("key", ["host: x", "username: x", "password_file: x", "tls: true"])
def test_the_embedded_broker_takes_no_host(tmp_path: Path, key: str) -> None:
    [line] = lines(tmp_path, f"mqtt:\n  embedded: true\n  {key}\n")
    assert line.startswith(f"3:{3 + key.index(':') + 2}: mqtt.{key.partition(':')[0]}: ")


def test_errors_between_keys_are_all_said_at_once(tmp_path: Path) -> None:
    text = "mqtt:\n  embedded: true\n  host: x\n  tls: true\n  port: 2000\n"
    assert [line[:3] for line in lines(tmp_path, text)] == ["3:9", "4:8"]
    text = "cameras:\n  a:\n    source: x\n    reader: synthetic\n    password: p\n"
    text += "    password_file: q\n    crop: [1, 1, 0, 0]\n"
    assert [line.split(": ")[1] for line in lines(tmp_path, text)] == [
        "cameras.a.reader",
        "cameras.a.password",
        "cameras.a.password_file",
        "cameras.a.password_file",
        "cameras.a.crop",
    ]


def test_the_embedded_broker_takes_a_port(tmp_path: Path) -> None:
    config = good(tmp_path, "mqtt: {embedded: true, port: 2000}\n")
    assert config.mqtt is not None and config.mqtt.embedded_port == 2000
    config = good(tmp_path, "mqtt: {embedded: true}\n")
    assert config.mqtt is not None and config.mqtt.embedded_port is None
    assert config.outputs == ("mqtt",)


def test_tls_moves_the_default_port(tmp_path: Path) -> None:
    for text, port in (("tls: true", 8883), ("tls: {ca: x.pem}", 8883), ("tls: false", 1883)):
        config = good(tmp_path, f"mqtt: {{{text}}}\n")
        assert config.mqtt is not None and config.mqtt.port == port
    config = good(tmp_path, "mqtt: {tls: true, port: 1884}\n")
    assert config.mqtt is not None and config.mqtt.port == 1884


@pytest.mark.parametrize("host", ["mqtt://h", "h:1883", "u:p@h", "a b", "a/b"])
def test_a_host_is_a_host(tmp_path: Path, host: str) -> None:
    assert lines(tmp_path, f"mqtt:\n  host: {host}\n")[0].startswith(
        "2:9: mqtt.host: must be a host"
    )


def test_a_smaller_batch_needs_no_target(tmp_path: Path) -> None:
    batch = good(tmp_path, "scheduling: {batch: {max: 2}}\n").scheduling.batch
    assert (batch.target, batch.max) == (2, 2)


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ("{source: 'rtsp://h/1', reader: rtsp, transport: udp}", "reader"),
        ("{source: /dev/video0, decoder: cuda}", "decoder"),
        ("{source: 'http://h/x', transport: udp}", "transport"),
        ("{source: 'synthetic://', crop: [0, 0, 0.5, 1]}", "crop"),
    ],
)
def test_what_a_source_cannot_have_is_refused(tmp_path: Path, block: str, key: str) -> None:
    result = loaded(tmp_path, f"cameras: {{a: {block}}}\n")
    assert [problem.key for problem in result.failed_cameras["a"]] == [f"cameras.a.{key}"]


def test_notes_do_not_refuse(tmp_path: Path) -> None:
    result = loaded(
        tmp_path,
        "web: {}\ntracking: {flow: true}\nmqtt: {}\noutputs: []\ncameras:\n"
        "  a: {source: x, decoder: cpu, skip: nonref}\n  b: {source: y, decoder: cuda}\n",
    )
    assert result.config is not None
    assert [(note.line, note.key) for note in result.notes] == [
        (1, "web"),
        (3, "mqtt"),
        (4, "outputs"),
    ]
    assert not loaded(tmp_path, "mqtt: {}\n" + MINIMAL).notes


@pytest.mark.parametrize("text", ["stats: {}\n", "cameras:\n", "cameras: {}\n"])
def test_zero_cameras_is_valid_with_a_note(tmp_path: Path, text: str) -> None:
    result = loaded(tmp_path, "mqtt: {}\n" + text)
    assert result.config is not None and result.config.cameras == {}
    assert [note.message for note in result.notes] == ["no camera will run: none given"]


def test_64_cameras_load_quickly(tmp_path: Path) -> None:
    block = (
        "  cam{0}:\n    source: rtsp://u:p@10.0.0.{0}/stream1\n    confidence: {{person: 0.5}}\n"
        "    ignore: [[[0, 0], [1, 0], [1, 0.2], [0, 0.2]], [[0, 0.5], [0.2, 1], [0, 1]]]\n"
        "    publish: {{max_per_s: 5}}\n    weight: 2\n    classes: [person, car]\n"
    )
    text = "cameras:\n" + "".join(block.format(i) for i in range(64))
    began = time.process_time()
    assert len(good(tmp_path, text).cameras) == 64
    assert time.process_time() - began < 5  # 0.2 s here
