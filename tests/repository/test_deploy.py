"""The templates of deploy/: what images are made of, and what clusters are asked to run.

A night runs, on a CPU. So does the script for Slurm, whose programs are stand-ins; images are read,
and at night made without an engine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests import ROOT
from tests.plugin.test_conditions import AT_NIGHT

DEPLOY = ROOT / "deploy"
STAND_INS = {
    # An array's tasks one after the other, as the directives of the script ask for it.
    "sbatch": """\
        array=$(sed -n 's/^#SBATCH --array=//p' "$1")
        for task in $(seq "${array%-*}" "${array#*-}"); do
            SLURM_ARRAY_JOB_ID=4711 SLURM_ARRAY_TASK_ID=$task sh "$1" || exit 1
        done
    """,
    "srun": 'exec "$@"',
    "apptainer": 'printf "%s\\n" "$*" >>"$CALLS"',
}


def instructions() -> list[tuple[str, str]]:
    """Those of the Dockerfile, in their order."""
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    words = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return [(word, rest) for word, rest in words]


def sections() -> dict[str, str]:
    """Those of the Apptainer definition; "" has what stands before them."""
    text = (DEPLOY / "gpuperf.def").read_text(encoding="utf-8")
    head, *others = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    return {"": head, **dict(zip(others[::2], others[1::2], strict=True))}


def copied_by_docker() -> set[tuple[str, str]]:
    """What is taken from the checkout, and where below /src it comes to."""
    made = set()
    for word, rest in instructions():
        if word == "COPY":
            *sources, target = rest.split()
            is_folder = target.endswith("/")
            made |= {(s, str(Path(target, Path(s).name if is_folder else ""))) for s in sources}
    return made


def copied_by_apptainer() -> set[tuple[str, str]]:
    """The same; a line has one source."""
    pairs = (line.split() for line in sections()["files"].splitlines() if line.strip())
    return {(source, str(Path(target).relative_to("/src"))) for source, target in pairs}


def test_both_images_have_the_same_in_them() -> None:
    assert copied_by_docker() == copied_by_apptainer()
    assert all((ROOT / source).exists() for source, _ in copied_by_docker())
    (base,) = (rest.partition("=")[2] for word, rest in instructions() if word == "ARG")
    assert f"From: {base}\n" in sections()[""]
    assert [rest for word, rest in instructions() if word == "RUN"] == ["deploy/install"]
    assert shlex.split(sections()["post"])[-1] == "/src/deploy/install"
    for name in ("GPUPERF_VENV=/opt/gpuperf", "PIP_NO_CACHE_DIR=1"):
        assert name in sections()["post"]
        assert any(word == "ENV" and name in rest.split() for word, rest in instructions())


@AT_NIGHT
def test_an_image_has_all_that_a_night_needs(tmp_path: Path) -> None:
    """Made as the Dockerfile says, in a folder instead of an image."""
    source, venv = tmp_path / "src", tmp_path / "venv"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= {"GPUPERF_VENV": str(venv), "GIT_CONFIG_SYSTEM": str(tmp_path / "gitconfig")}
    for one, target in copied_by_docker():
        place = source / target
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / one).is_dir():
            shutil.copytree(ROOT / one, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / one, place)
    for command in (
        [str(source / "deploy" / "install")],
        [str(venv / "bin" / "gpuperf"), "metrics", "--gpu-arch", "sm90"],
        [str(venv / "bin" / "gpuperf"), "night", "--help"],
        [str(venv / "bin" / "pytest"), str(ROOT / "suites" / "meddpm"), "--collect-only", "-q"],
    ):
        done = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def git(folder: Path, *words: str) -> str:
    me = ("-c", "user.name=me", "-c", "user.email=me@home", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *me, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def committed(folder: Path) -> str:
    """The revision of what is in the folder."""
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


MEASURES = """\
#!/bin/sh
printf '%s\\n' "$*" "$(git rev-parse HEAD)" "$(python3 -c 'import project; print(project.LAYERS)')"
test -e installed || exit 9
exit $((LAST + 0))
"""


def test_each_night_measures_the_code_of_its_day(tmp_path: Path) -> None:
    """In a project with src layout, of which the image has an old copy; `gpuperf` is a stand-in."""
    project, nights = tmp_path / "project", tmp_path / "nights of a year"
    code, programs = project / "src" / "project", tmp_path / "programs"
    for folder in (code, programs, tmp_path / "image" / "project", tmp_path / "temp"):
        folder.mkdir(parents=True)
    (tmp_path / "image" / "project" / "__init__.py").write_text("LAYERS = 0\n")
    (programs / "gpuperf").write_text(MEASURES)
    (programs / "gpuperf").chmod(0o755)
    git(project, "init", "--quiet")
    for layers in (1, 2):
        (code / "__init__.py").write_text(f"LAYERS = {layers}\n")
        revision = committed(project)
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(tmp_path / "image"),
            "TMPDIR": str(tmp_path / "temp"),
            "GPUPERF_REPOSITORY": str(project),
            "GPUPERF_NIGHTS": str(nights),
            "GPUPERF_INSTALL": "touch installed",
            "LAST": str(layers),
        }
        command = [str(DEPLOY / "night"), "--", "--gpu-arch", "cpu", "tests"]
        done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        flags = f"night --into {nights}/last --nights {nights}/runs -- --gpu-arch cpu tests"
        said = [f"{revision[:7]} x", flags, revision, str(layers)]
        assert (done.returncode, done.stdout.splitlines()) == (layers, said)
    assert [*(tmp_path / "temp").iterdir()] == []


def test_slurm_measures_each_suite_in_a_task_of_its_own(tmp_path: Path) -> None:
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    for name, text in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    nights = tmp_path / "nights of a year"
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "GPUPERF_NIGHTS": str(nights),
        "CALLS": str(calls),
    }
    script = DEPLOY / "slurm" / "night.sbatch"
    subprocess.run(["sbatch", script], env=environment, check=True)
    assert calls.read_text().splitlines() == [
        f"exec --nv --bind {nights} gpuperf.sif /src/deploy/night --into "
        f"{nights}/last-{task} -- --gpu-arch auto {suite}"
        for task, suite in enumerate(("suites/meddpm", "suites/convnext_ddpm"))
    ]
    assert nights.is_dir()
    text = script.read_text(encoding="utf-8")
    directives = re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.MULTILINE)
    assert {name for name, _ in directives} >= {"exclusive", "gpus", "mail-type", "time"}
    # What stands behind the first command is read by no sbatch.
    assert text.rindex("#SBATCH") < text.index("\nset ")


def test_a_pod_has_a_whole_gpu_a_claim_that_is_there_and_a_command_of_the_image() -> None:
    text = (DEPLOY / "kubernetes" / "night.yaml").read_text(encoding="utf-8")
    claim, cron = yaml.safe_load_all(text)
    pod: dict[str, Any] = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    (volume,) = pod["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/nights"}]
    (folder,) = (rest for word, rest in instructions() if word == "WORKDIR")
    assert container["command"] == [f"{folder}/deploy/night"]
    assert ("deploy/night", "deploy/night") in copied_by_docker()
    assert container["imagePullPolicy"] == "Always"
    named = {entry["name"]: entry["value"] for entry in container["env"]}
    assert named["GPUPERF_NIGHTS"] == "/nights"
    used = {*re.findall(r"GPUPERF_[A-Z]+", (DEPLOY / "night").read_text("utf-8"))}
    assert {*named} <= used
