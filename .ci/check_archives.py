"""Hold wheel and source archive of a folder to having every file of the package, kernels and models included."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

folder = Path(sys.argv[1])
[wheel], [source] = folder.glob("*.whl"), folder.glob("*.tar.gz")
listed = subprocess.run(["git", "ls-files", "sp"], capture_output=True, text=True, check=True).stdout.split()
wanted = {"sp/kernels/cuda/", "sp/assets/"}
if not all(any(name.startswith(part) for name in listed) for part in wanted):
    raise SystemExit(f"git lists nothing below one of {sorted(wanted)}")
with zipfile.ZipFile(wheel) as archive:
    held = {wheel.name: set(archive.namelist())}
with tarfile.open(source) as archive:
    held[source.name] = {name.split("/", 1)[-1] for name in archive.getnames()}
for name, files in held.items():
    if missing := sorted(set(listed) - files):
        raise SystemExit(f"{name} lacks {len(missing)} files, such as {missing[0]}")
    print(f"{name}: {len(files)} files, {(folder / name).stat().st_size / 1e6:.1f} MB")
