"""``check``, ``summary``, labels, effective settings, sources, the examples, and odd texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from vidserve.config import (
    NOT_YET,
    BatchConfig,
    CameraConfig,
    Config,
    JsonlOutput,
    LoadResult,
    MqttConfig,
    PublishLimit,
    Source,
    TlsConfig,
    check,
    check_labels,
    load,
    summary,
)
from vidserve.config.load import build
from vidserve.config.yaml_source import parse_bytes, parse_text

CONFIGS = Path(__file__).parent.parent / "configs"


def loaded(tmp_path: Path, text: str, **environ: str) -> LoadResult:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    return load(file, environ)


def test_check_of_a_good_file(tmp_path: Path) -> None:
    (tmp_path / "here.mp4").touch()
    (tmp_path / "yolo26n.pt").touch()
    file = tmp_path / "site.yaml"
    file.write_text(
        "detector: {image_size: [640, 320], confidence: {car: 0.5}}\n"
        "scheduling: {batch: {max: 2}}\n"
        "mqtt: {host: '::1', tls: {insecure: true}}\n"
        "outputs: [mqtt, {jsonl: out.jsonl}]\n"
        "cameras:\n  here: {source: here.mp4, loop: true, publish: {max_per_s: 5}}\n"
        "  gone: {source: gone.mp4, ignore: [[[0, 0], [1, 0], [1, 1]]]}\n"
        "  off: {source: 0, enabled: false}\n"
    )
    code, text = check(file, {})
    assert code == 0
    assert text.splitlines() == [
        f"{file}: good, 3 cameras",
        "detector    yolo26n.pt on auto, image_size [640, 320], confidence car 0.5, classes all",
        "scheduling  budget 33 ms, a detection every 5 frames, batch.max 2, batch.target 2",
        "mqtt        [::1]:8883, TLS, the name not checked, prefix vidserve",
        f"outputs     mqtt, jsonl {tmp_path}/out.jsonl",
        "cameras",
        "  here  here.mp4 (pyav), loop true, publish.max_per_s 5",
        "  gone  gone.mp4 (pyav), ignore 1 polygon",
        "  off   0 (opencv), disabled",
        f"warning: {file}:7:18: cameras.gone.source: there is no such file now: "
        f"{tmp_path}/gone.mp4",
    ]


def test_check_of_a_bad_camera(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(
        "cameras:\n  a: {source: a.mp4}\n  b: {source: b.mp4, fpss: 5, loop: on}\n"
        "  c: {source: c.mp4, enabled: false}\n"
    )
    code, text = check(file, {})
    assert code == 2
    assert text.splitlines() == [
        f"{file}:3:22: cameras.b.fpss: unknown key (did you mean fps?)",
        f"{file}:3:37: cameras.b.loop: must be true or false, but is on (did you mean true?)",
        "2 problems: b would be failed; 1 of 3 cameras would run: a",
    ]


def test_check_of_a_refused_file(tmp_path: Path) -> None:
    code, text = check(tmp_path / "none.yaml", {})
    assert code == 2
    assert text.splitlines()[-1] == "1 problem: the config is refused, nothing would run"


def test_the_examples_are_good() -> None:
    files = sorted(CONFIGS.glob("*.yaml"))
    assert {"vidserve.yaml", "two-files.yaml"} <= {file.name for file in files}
    for name in ("vidserve.yaml", "two-files.yaml"):
        code, text = check(CONFIGS / name, {"MQTT_PASSWORD": "x", "GATE_PASSWORD": "y"})
        assert code == 0, text


# ---- labels -----------------------------------------------------------------------------------

LABELS = (
    "detector: {classes: [person, cra], confidence: {trafic light: 0.5}}\n"
    "cameras:\n  a: {source: x, classes: [Person]}\n  b: {source: x, confidence: {dog: 0.5}}\n"
    "  c: {source: x}\n"
)
NAMES = ["person", "car", "traffic light"]


def test_labels_that_the_model_does_not_have(tmp_path: Path) -> None:
    result = loaded(tmp_path, LABELS)
    problems = check_labels(result, NAMES)
    assert [str(p).removeprefix(f"{result.file}:") for p in problems] == [
        "1:30: detector.classes[1]: cra: the model has no such label (did you mean car?)",
        "1:49: detector.confidence.trafic light: the model has no such label "
        "(did you mean traffic light?)",
        "3:28: cameras.a.classes[0]: Person: the model has no such label (did you mean person?)",
        "4:31: cameras.b.confidence.dog: the model has no such label "
        "(it has person, car, traffic light)",
    ]
    refused = result.with_problems(problems)
    assert refused.config is None and list(refused.failed_cameras) == ["a", "b"]
    cameras_only = result.with_problems(p for p in problems if p.camera)
    assert cameras_only.config is not None and list(cameras_only.config.cameras) == ["c"]
    assert check_labels(result, [*NAMES, "cra", "trafic light", "Person", "dog"]) == []
    assert check_labels(refused, NAMES) == []


# ---- what holds for a camera ------------------------------------------------------------------


def effective(detector: dict[str, object], camera: dict[str, object]) -> Config:
    return Config.model_validate({"detector": detector, "cameras": {"a": {"source": "x"} | camera}})


@pytest.mark.parametrize(
    ("detector", "camera", "person", "car"),
    [
        ({}, {}, 0.35, 0.35),
        ({"confidence": 0.5}, {}, 0.5, 0.5),
        ({"confidence": {"person": 0.6}}, {}, 0.6, 0.35),
        ({"confidence": 0.5}, {"confidence": 0.7}, 0.7, 0.7),
        ({"confidence": 0.5}, {"confidence": {"person": 0.7}}, 0.7, 0.5),
        ({"confidence": {"person": 0.6, "car": 0.2}}, {"confidence": {"person": 0.7}}, 0.7, 0.2),
        ({"confidence": {"person": 0.6}}, {"confidence": 0.8}, 0.8, 0.8),
    ],
)
def test_confidence_of_a_label_on_a_camera(
    detector: dict[str, object], camera: dict[str, object], person: float, car: float
) -> None:
    settings_ = effective(detector, camera).camera("a")
    assert (settings_.confidence("person"), settings_.confidence("car")) == (person, car)
    assert settings_.lowest_confidence(["person", "car"]) == min(person, car)


def test_classes_of_a_camera_replace_the_detectors() -> None:
    assert effective({}, {}).camera("a").wants("anything")
    assert effective({"classes": ["car"]}, {}).camera("a").classes == ("car",)
    camera = effective({"classes": ["car"]}, {"classes": ["dog"]}).camera("a")
    assert camera.wants("dog") and not camera.wants("car")


def test_interval_of_a_camera() -> None:
    assert effective({}, {}).camera("a").keyframe_interval == 5
    assert effective({}, {"keyframe_interval": 1}).camera("a").keyframe_interval == 1
    with pytest.raises(KeyError):
        effective({}, {}).camera("b")


# ---- sources ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    "-video-with-dash-.mp4|Hof #2.mp4|100%.mp4|café.mp4|a b.mp4|12:30.mp4|a?b.mp4|no|010|"
    "a\\b.mp4|./rtsp:x@y.mp4|~x.mp4|0x1F|file:x.mp4|%41.mp4|$x.mp4|a&b=c.mp4".split("|"),
)
def test_odd_names_are_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    result = loaded(tmp_path, f"cameras: {{a: {{source: '{name}'}}}}\n")
    assert result.config is not None, result.problems
    camera = result.config.camera("a")
    assert (camera.kind, camera.source) == ("file", str(tmp_path / name))
    assert "no such file" not in check(tmp_path / "site.yaml", {})[1]


@pytest.mark.parametrize(
    ("text", "kind", "opened", "reader"),
    [
        ("0", "device", 0, "opencv"),
        ("12", "device", 12, "opencv"),
        ("/dev/video0", "device", "/dev/video0", "opencv"),
        ("'0'", "file", "0", "pyav"),
        ("010", "file", "010", "pyav"),
        ("/abs/x.mp4", "file", "/abs/x.mp4", "pyav"),
        ("rtsp://h/1", "url", "rtsp://h/1", "auto"),
        ("rtsps://h/1", "url", "rtsps://h/1", "pyav"),
        ("udp://@239.0.0.1:5004", "url", "udp://239.0.0.1:5004", "pyav"),
        ("udp://:5004", "url", "udp://:5004", "pyav"),
        ("http://h/a%20b.mp4?x=1&y=2#z", "url", "http://h/a%20b.mp4?x=1&y=2#z", "pyav"),
        ("synthetic://?width=640&height=360&fps=30&objects=3", "synthetic",
         "synthetic://?width=640&height=360&fps=30&objects=3", "synthetic"),
    ],
)  # fmt: skip
def test_kinds_of_sources(
    tmp_path: Path, text: str, kind: str, opened: str | int, reader: str
) -> None:
    result = loaded(tmp_path, f"cameras:\n  a:\n    source: {text}\n")
    assert result.config is not None, result.problems
    camera = result.config.camera("a")
    if kind == "file" and isinstance(opened, str):
        opened = str(tmp_path / opened)
    assert (camera.kind, camera.source, camera.reader) == (kind, opened, reader)


@pytest.mark.parametrize("value", [-1, 10_000])
def test_device_numbers_have_bounds(value: int) -> None:
    with pytest.raises(ValueError, match="between 0 and 9999"):
        Source.parse(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rtps://h", "did you mean rtsps?"),
        ("rtsp://", "no host"),
        ("rtsp:///path", "no host"),
        ("rtsp://h:0/", "not a port"),
        ("rtsp://h:70000/", "not a port"),
        ("rtsp://h/a b", "no blanks"),
        ("''", "is empty"),
        ("' '", "is empty"),
        ("[a]", "but is a list"),
        ("{a: b}", "but is a mapping"),
        ("rtsp:/h/1", "looks like a URL without scheme://"),
    ],
)
def test_sources_that_are_none(tmp_path: Path, text: str, says: str) -> None:
    result = loaded(tmp_path, f"cameras:\n  a:\n    source: {text}\n")
    [problem] = result.problems
    assert (problem.line, problem.column, problem.camera) == (3, 13, "a")
    assert says in problem.message


# ---- the schema -------------------------------------------------------------------------------


def all_models() -> list[type[BaseModel]]:
    from vidserve.config import schema

    found = [x for x in vars(schema).values() if isinstance(x, type) and issubclass(x, BaseModel)]
    return [model for model in found if model.__module__ == schema.__name__]


def test_every_model_is_strict_frozen_and_documented() -> None:
    assert {Config, CameraConfig, MqttConfig, BatchConfig, TlsConfig} <= set(all_models())
    for model in all_models():
        assert model.model_config.get("frozen") and model.model_config.get("extra") == "forbid"
        for name, info in model.model_fields.items():
            assert info.description, f"{model.__name__}.{name}"
    assert Config.model_json_schema()["properties"]["cameras"]


def test_python_values_are_taken_and_coerced_ones_are_not() -> None:
    config = Config.model_validate(
        {
            "outputs": ({"jsonl": "x"},),
            "detector": {"image_size": 320},
            "cameras": {"a": {"source": 0, "fps": 5, "publish": {"max_per_s": 2}}},
        }
    )
    assert config.outputs == (JsonlOutput(jsonl="x"),)
    assert config.cameras["a"].publish == PublishLimit(max_per_s=2)
    assert config.path("x") == Path.cwd() / "x"
    bad_values: list[dict[str, object]] = [
        {"source": "x", "fps": True},
        {"source": "x", "fps": "5"},
        {"source": "x", "fps": float("nan")},
        {"source": "x", "fps": float("inf")},
        {"source": "x", "weight": float("nan")},
        {"source": "x", "loop": 1},
        {"source": "x", "loop": "true"},
        {"source": True},
        {"source": None},
        {"source": "x", "keyframe_interval": 5.0},
    ]
    for bad in bad_values:
        with pytest.raises(ValidationError):
            CameraConfig.model_validate(bad)
    with pytest.raises(ValidationError):
        Config.model_validate({"cameras": {"a/b": {"source": "x"}}})


def test_nothing_can_be_assigned() -> None:
    config = Config()
    with pytest.raises(ValidationError):
        config.detector.model = "x"


def test_not_yet_names_keys_that_exist() -> None:
    for key in NOT_YET:
        model: type[BaseModel] = Config
        parts = key.replace("cameras.*.", "").split(".")
        if key.startswith("cameras.*."):
            model = CameraConfig
        elif len(parts) == 2:
            inner = model.model_fields[parts[0]].annotation
            assert isinstance(inner, type) and issubclass(inner, BaseModel)
            model = inner
        assert parts[-1] in model.model_fields, key


# ---- any text at all --------------------------------------------------------------------------

KEYS = sorted({name for model in all_models() for name in model.model_fields} | {"gate", "<<", "é"})
SCALARS = st.one_of(
    st.sampled_from(
        ["on", "no", "010", "1e3", "12:30", "~", "", "0.5", "5", "-1", "[", "*a", "&a"]
    ),
    st.sampled_from(["${X}", "${Y}", "$", "mqtt", "rtsp://u:p@h/1", "auto", "x.mp4", "true", "!b"]),
    st.text(max_size=8),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=25,
)
FORM = re.compile(r"site\.yaml:[0-9]+:[0-9]+: [^\n]+: [^\n]+")


def sound(result: LoadResult) -> None:
    """What holds for every result."""
    for line in [*result.problems, *result.notes]:
        assert FORM.fullmatch(str(line)), repr(str(line))
        str(line).encode()
        assert "_type" not in line.message and "Input should" not in line.message, line
    assert (result.config is None) == any(p.camera is None for p in result.problems)
    assert set(result.failed_cameras) == {p.camera for p in result.problems if p.camera is not None}
    if result.config is not None:
        assert not set(result.config.cameras) & set(result.failed_cameras)
        assert summary(result)
    places = [(p.line, p.column) for p in result.problems]
    assert places == sorted(places)


@given(st.text(max_size=200))
@example("a: &a\n  <<: *a")
@example("? ? ?")
@example("'\\")
@example("\u2028a: b: \x85 c")
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_result(text: str) -> None:
    sound(build("site.yaml", parse_text(text, {"X": "x"}), Path("/nowhere")))


@given(st.binary(max_size=100))
@settings(deadline=None)
def test_any_bytes_give_a_result(content: bytes) -> None:
    sound(build("site.yaml", parse_bytes(content, {}), Path("/nowhere")))


@given(st.text(alphabet="ab:-?[]{}<>&*!|'\"%@`#, \n\t~\\0$.é", max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_yaml_signs_give_a_result(text: str) -> None:
    sound(build("site.yaml", parse_text(text, {"X": "x"}), Path("/nowhere")))


@given(
    st.dictionaries(st.sampled_from([*Config.model_fields, "zzz"]), DATA, max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "no", "A", "x/y", ""]), DATA, max_size=3),
    st.booleans(),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_data_gives_a_result(
    data: dict[str, object], cameras: dict[str, object], flow: bool
) -> None:
    data = {**data, "cameras": cameras}
    text = yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True)
    sound(build("site.yaml", parse_text(text, {"X": "x"}), Path("/nowhere")))


@given(
    st.dictionaries(
        st.sampled_from(sorted(CameraConfig.model_fields)), DATA, min_size=1, max_size=6
    )
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_camera_leaves_the_other(block: dict[str, object]) -> None:
    data = {"cameras": {"bad": block, "good": {"source": "x.mp4"}}}
    result = build("site.yaml", parse_text(yaml.safe_dump(data), {"X": "x"}), Path("/nowhere"))
    sound(result)
    # An alias or a merge that bites its tail cannot come from safe_dump: the other always loads.
    assert result.config is not None and "good" in result.config.cameras
    assert ("bad" in result.config.cameras) != ("bad" in result.failed_cameras)
