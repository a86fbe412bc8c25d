# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What bench/run, tests/run and .ci/run share: what a machine must have, and how to build.
# They set `program` (their name in messages) and `root`, and source this.
: "${root:?}" "${program:?}"

log=${program//\//-}
log=$root/build/${log#.}.log
mkdir -p "$root/build"
: >"$log"

fail() {
    printf '%s: %s\n' "$program" "$1" >&2
    exit 1
}

# For failures that the log explains. Whoever reads .ci/run's output cannot open it.
fail_with_log() {
    if [ -n "${DUCTILE_SHOW_LOG-}" ]; then
        tail -n 60 "$log" >&2
    fi
    fail "$1; see $log"
}

progress() {
    if [ -t 2 ]; then
        printf '%s: %s\n' "$program" "$1" >&2
    fi
}

# ---- What must be there ------------------------------------------------------------------------

version_at_least() { # version_at_least WANTED FOUND
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

has_cmake() {
    local line
    line=$(cmake --version | head -n 1) && version_at_least 3.23 "${line##* }"
}

has_header() {
    printf '#include <%s>\n' "$1" | cc -E -x c - -o /dev/null
}

has_criterion() {
    pkg-config --exists 'criterion >= 2.4.1'
}

# The interpreter that has matplotlib: the one in PATH may be another than the system's.
find_plot_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3 /usr/bin/python3; do
        if "$candidate" -c 'import matplotlib' 2>>"$log"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# A virtual environment that can install packages: Debian ships that part of Python by itself.
has_venv() {
    python3 -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 9))'
}

# Prints "package reason" for each thing that a group needs and the machine lacks.
# A reason names what is wanted where the package alone does not say it.
list_missing() {
    local group
    want() { # want PACKAGE REASON CHECK...
        "${@:3}" >/dev/null 2>&1 || printf '%s %s\n' "$1" "$2"
    }
    for group in "$@"; do
        case $group in
        build)
            want gcc "a C compiler" command -v cc
            want libc6-dev "the C library's headers" has_header stdio.h
            want cmake "CMake 3.23 or newer" has_cmake
            want ninja-build ninja command -v ninja
            want zlib1g-dev "zlib's headers" has_header zlib.h
            ;;
        test)
            want g++ "a C++ compiler" command -v c++
            want pkg-config pkg-config command -v pkg-config
            want libcriterion-dev "Criterion 2.4.1 or newer" has_criterion
            ;;
        python)
            want python3-venv "Python 3.9 or newer with venv" has_venv
            ;;
        browser)
            want chromium "the browser chromium" command -v chromium
            want chromium-driver "its driver, chromedriver" command -v chromedriver
            ;;
        picture)
            want python3-matplotlib "Python 3 with matplotlib" find_plot_python
            ;;
        esac
    done
}

# ---- Getting it --------------------------------------------------------------------------------

find_root_rights() {
    command -v apt-get >/dev/null || return 1
    as_root=(env DEBIAN_FRONTEND=noninteractive)
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>>"$log" || return 1
        as_root=(sudo -n "${as_root[@]}")
    fi
}

install_packages() {
    "${as_root[@]}" apt-get -q -o DPkg::Lock::Timeout=120 update &&
        "${as_root[@]}" apt-get -q -y -o DPkg::Lock::Timeout=120 install \
            --no-install-recommends "$@"
}

name_things() { # of lines "package reason": the reasons
    cut -d ' ' -f 2- <<<"$1" | paste -s -d ',' | sed 's/,/, /g'
}

# try_to_get GROUP...: installs what is missing where it may. On failure `reason` is one line.
try_to_get() {
    local missing packages
    missing=$(list_missing "$@")
    [ -n "$missing" ] || return 0
    mapfile -t packages < <(cut -d ' ' -f 1 <<<"$missing")
    if ! find_root_rights; then
        reason="missing: $(name_things "$missing") (Debian: apt-get install ${packages[*]})"
        return 1
    fi
    progress "installing ${packages[*]}"
    if ! install_packages "${packages[@]}" >>"$log" 2>&1; then
        reason="missing: $(name_things "$missing"), and apt-get install failed; see $log"
        return 1
    fi
    missing=$(list_missing "$@")
    if [ -n "$missing" ]; then
        reason="missing: $(name_things "$missing"); this system's own packages are older"
        return 1
    fi
}

get() {
    try_to_get "$@" || fail "$reason"
}

# The formatter's one version is not everywhere; without it that check says so and is skipped.
try_to_get_formatter() {
    if ! command -v clang-format-14 >/dev/null && find_root_rights &&
        apt-cache show clang-format-14 >/dev/null 2>&1; then
        install_packages clang-format-14 >>"$log" 2>&1 || true
    fi
}

# ---- Building ----------------------------------------------------------------------------------

# build FOLDER PRESET [CMAKE ARGUMENT]...: into build/FOLDER
build() {
    progress "building $1"
    (cd "$root" && cmake --preset "$2" -B "build/$1" "${@:3}" &&
        cmake --build "build/$1" --parallel "$(nproc)") >>"$log" 2>&1 ||
        fail_with_log "the $1 build failed"
}

has_gpu() {
    [ -e /dev/nvidiactl ]
}
