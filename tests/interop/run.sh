#!/usr/bin/env bash
# run.sh WRITER FOLDER: writes files with WRITER into FOLDER/out and has tensorboard and safetensors read them. The
# virtual environment in FOLDER/venv is kept between runs. Exits with 77 where Python or its packages cannot be had.
set -euo pipefail

writer=$1
folder=$2
here=$(cd "$(dirname "$0")" && pwd)
venv=$folder/venv

skip() {
  echo "skipped: $1"
  exit 77
}

command -v python3 >/dev/null || skip "python3 is not installed"
python3 -c 'import ensurepip, venv' 2>/dev/null || skip "python3-venv is not installed"

# The stamp says what is installed; a venv that was interrupted or is for another list is made anew.
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
  rm -rf "$venv"
  mkdir -p "$folder"
  python3 -m venv "$venv"
  if ! timeout 400 "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 \
      -r "$here/requirements.txt" >"$folder/pip.log" 2>&1; then
    tail -n 3 "$folder/pip.log"
    skip "the Python packages of requirements.txt cannot be installed here"
  fi
  cp "$here/requirements.txt" "$venv/installed.txt"
fi

rm -rf "$folder/out"
mkdir -p "$folder/out"
"$writer" "$folder/out"
"$venv/bin/python" "$here/verify.py" "$folder/out"
