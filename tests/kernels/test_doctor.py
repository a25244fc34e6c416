"""The doctor finds what is planted, says how to mend it, and ends with the right status."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from sp import cli
from sp.errors import DeviceError
from sp.kernels.tools import doctor
from sp.quant import FORMATS


class Machine:
    """Replace what the doctor examines by a machine without problems."""

    def __init__(self, monkeypatch, tmp_path):
        self.wheels = {"cupy-cuda13x": "14.2.0"}
        self.driver, self.built, self.nvrtc, self.headers = 13000, 13020, (13, 5), 13020
        self.free, self.compute = 70, (9, 0)
        self.count, self.nccl, self.reach = 1, 0, True
        runtime = SimpleNamespace(
            runtimeGetVersion=lambda: self.built,
            driverGetVersion=lambda: self.driver,
            memGetInfo=lambda: (self.free << 30, 80 << 30),
        )
        cupy = SimpleNamespace(__version__="14.2.0", cuda=SimpleNamespace(runtime=runtime))
        monkeypatch.setattr(doctor, "import_cupy", lambda: cupy)
        monkeypatch.setattr(doctor, "current_device", lambda: 0)
        monkeypatch.setattr(doctor, "device_count", lambda: self.count)
        monkeypatch.setattr(doctor, "nccl_version", lambda: self.nccl)
        monkeypatch.setattr(doctor, "reach_each_other", lambda devices: self.reach and len(devices) == 2)
        monkeypatch.setattr(doctor, "device_name", lambda device: "NVIDIA H200")
        monkeypatch.setattr(doctor, "multiprocessors", lambda device: 132)
        monkeypatch.setattr(doctor, "require_device", lambda: self.compute)
        monkeypatch.setattr(doctor, "native_path", lambda: "sm_90a")
        monkeypatch.setattr(doctor, "_installed", lambda name: self.wheels.get(name))
        monkeypatch.setattr(doctor.nvml, "driver_version", lambda: "580.1")
        monkeypatch.setattr(doctor.nvrtc, "version", lambda: self.nvrtc)
        monkeypatch.setattr(doctor.nvrtc, "header_folder", lambda: self.header_folder(tmp_path))
        monkeypatch.setattr(doctor, "run_selftest", lambda: iter(["launch", "mma.sync"]))
        monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "cache"))

    def header_folder(self, folder):
        (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {self.headers}\n")
        return str(folder)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    return Machine(monkeypatch, tmp_path)


def states():
    return {finding.name: finding.state for finding in doctor.examine()}


def found(name):
    return next(finding for finding in doctor.examine() if finding.name == name)


def test_a_sound_machine(machine):
    names = ["wheels", "cupy", "compiler", "headers", "cache", "driver", "gpu", "gpus", "memory", "selftest",
             "formats", "re-packed"]  # fmt: skip
    assert states() == dict.fromkeys(names, "ok")
    assert doctor.usable(list(doctor.examine()))
    assert found("selftest").detail == "launch, mma.sync"


def test_several_gpus_and_what_joins_them(machine):
    assert found("gpus").detail == "1: NVIDIA H200"
    machine.count = 2
    assert (found("gpus").state, found("gpus").detail) == ("warn", "2: NVIDIA H200, NVIDIA H200; no NCCL")
    assert found("gpus").mend.startswith("pip install nvidia-nccl-cu13")
    machine.nccl = 22809
    assert found("gpus").state == "ok"
    assert found("gpus").detail.endswith("; NCCL 2.28.9; peer access between all")
    machine.reach = False
    assert found("gpus").detail.endswith("; NCCL 2.28.9; no peer access, NCCL only")


def test_two_wheels_clash(machine):
    machine.wheels["cupy-cuda12x"] = "14.1.0"
    assert found("wheels").state == "fail"
    assert "pip uninstall -y cupy-cuda12x cupy-cuda13x" in found("wheels").mend


def test_no_wheel(machine):
    machine.wheels.clear()
    assert found("wheels").state == "warn"


def test_compiler_and_headers_of_another_major(machine):
    machine.nvrtc, machine.headers = (12, 9), 12090
    assert found("compiler").state == found("headers").state == "fail"
    assert "nvidia-cuda-nvrtc==13.*" in found("compiler").mend


def test_no_driver_ends_the_examination(machine):
    machine.driver = 0
    assert found("driver").state == "fail"
    assert "gpu" not in states()


def test_an_old_driver(machine):
    machine.driver = 12080
    assert found("driver").state == "fail"
    assert "sp-prefill[cuda12]" in found("driver").mend


def test_a_full_gpu_is_a_warning(machine):
    machine.free = 3
    assert found("memory").state == "warn"
    assert doctor.usable(list(doctor.examine()))


def test_a_failed_self_test_and_an_unsupported_gpu(machine, monkeypatch):
    def broken():
        yield "launch"
        raise DeviceError("wgmma gives 3 wrong values of 512 on this GPU")

    monkeypatch.setattr(doctor, "run_selftest", broken)
    assert found("selftest").state == "fail"

    def old():
        raise DeviceError("this GPU has compute capability 7.5; the kernels need 8.0 (Ampere) or newer")

    monkeypatch.setattr(doctor, "require_device", old)
    assert found("gpu") == doctor.Finding(
        "gpu", "fail", "this GPU has compute capability 7.5", "the kernels need 8.0 (Ampere) or newer"
    )


def test_an_unwritable_cache(machine, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SP_CACHE_DIR", str(tmp_path / "file"))
    assert found("cache").state == "fail"
    assert "SP_CACHE_DIR" in found("cache").mend


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["sp", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, capsys.readouterr()


def test_the_command_prints_and_ends_with_its_status(machine, monkeypatch, capsys):
    status, said = run(monkeypatch, capsys, "doctor")
    assert status == 0
    assert "NVIDIA H200" in said.out
    assert "on the CPU" not in said.out
    machine.driver = 0
    status, said = run(monkeypatch, capsys, "doctor")
    assert status == 2
    assert "fail driver" in said.out
    assert "-> install one" in said.out
    last = said.out.strip().splitlines()[-1]
    assert last == (
        "The GPU cannot be used, which is exit status 2. sp run, chat, serve and eval need none: they run on the CPU."
    )


def test_the_command_as_json(machine, monkeypatch, capsys):
    machine.nvrtc = (12, 9)
    status, said = run(monkeypatch, capsys, "doctor", "--json")
    told = json.loads(said.out)
    assert status == 2
    assert told["usable"] is False
    assert [f["name"] for f in told["findings"] if f["state"] == "fail"] == ["compiler"]


def test_without_cupy_the_examination_ends_there(machine, monkeypatch):
    def missing():
        raise DeviceError("cupy is missing; install it")

    machine.wheels.clear()
    monkeypatch.setattr(doctor, "import_cupy", missing)
    assert states() == {"wheels": "warn", "cupy": "fail"}


def test_formats_without_kernels_are_listed_by_the_format_they_become(machine):
    assert "kernels read Q4_K," in found("formats").detail
    lines = [finding.detail for finding in doctor.examine() if finding.name == "re-packed"]
    targets = [line.partition(" -> ")[2] for line in lines]
    assert sorted(targets) == sorted(set(targets)) == ["BF16", "Q8_0"], "a line a target"
    told = {name: line.partition(" -> ")[2] for line in lines for name in line.partition(" -> ")[0].split(", ")}
    assert (told["F32"], told["TQ2_0"], told["IQ1_M"]) == ("BF16", "Q8_0", "Q8_0")
    read = found("formats").detail.removeprefix("kernels read ").partition(";")[0].split(", ")
    assert sorted([*read, *told]) == sorted(fmt.name for fmt in FORMATS.values()), "every format is in one line"
