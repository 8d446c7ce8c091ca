# Sourced by tools/quickstart and tools/test: makes .venv with the extras asked for.
#
#   make_environment EXTRA
#
# Sets `root`, the clone, and `python`, the interpreter of .venv. PYTHON names another
# interpreter to make it from. What is installed already is not installed again.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 2
}

# The first interpreter there is of a version that TensorFlow has wheels for.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' \
        2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "Python 3.10 to 3.13 is needed, found $(${PYTHON:-python3} --version 2>&1 |
    tail -n 1): install one, or name it: PYTHON=/path/to/python $0"
}

make_environment() {
  local extra=$1 base stamp wanted log
  stamp=$root/.venv/installed-$extra
  # What the environment was made from: the requirements, and the place of the clone.
  wanted=$(cat "$root/setup.py" "$root/tools/environment.sh"; echo "$root")
  if [ -x "$python" ] && [ "$wanted" = "$(cat "$stamp" 2>/dev/null)" ]; then
    return
  fi
  base=$(find_python) || exit 2
  log=$(mktemp)
  trap "rm -f '$log'" EXIT
  echo "Installing into $root/.venv (TensorFlow and what else is needed: some minutes)"
  if ! "$python" -m pip --version >"$log" 2>&1 &&
      ! "$base" -m venv --clear "$root/.venv" >"$log" 2>&1; then
    fail "$base cannot make a virtual environment (on Debian: apt-get install" \
      "python3-venv): $(tail -n 1 "$log")"
  fi
  if ! "$python" -m pip install --quiet --disable-pip-version-check \
      --editable "$root[$extra]" >"$log" 2>&1; then
    if grep -qiE 'connection|network|resol|retries|timed out|no matching dist' "$log"; then
      fail "the package index cannot be reached, is the network there?" \
        "$(grep -iE 'error' "$log" | tail -n 1)"
    fi
    fail "pip failed: $(grep -iE 'error' "$log" | tail -n 1)"
  fi
  # A folder tf_goyal that somebody stands beside, as a fresh clone is one, would hide an
  # editable package; what the path of the modules names comes before it.
  echo "$root" >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tf_goyal_clone.pth"
  echo "$wanted" >"$stamp"
}
