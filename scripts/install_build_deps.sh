#!/usr/bin/env bash
# Installs the system packages that a build of Thresher needs. Everything else (CMake, Ninja, Conan, ...) comes from pip.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/install_build_deps.sh [options]

Installs what is missing for a build of Thresher: a C++ compiler, the headers of the Python that builds, and the module
venv. Knows Debian and Ubuntu and what derives from them.

  -y               ask no question
  --dry-run        print the commands that would run, and run none
  --print          print the packages for this machine, one a line, installed or not
  --check          print what is missing, one a line; exit code 1 if anything is
  --platform NAME  x86, arm or cuda (default: what this machine is); arm elsewhere: also a cross compiler and an emulator;
                   cuda: as x86, for the CUDA compiler comes from pip
  --tests          also what only tests use: Chromium, Node and, on x86_64, a cross compiler
  --containers     also a container engine (podman), and what makes base images and runs those of other architectures
  --fuzz           also Clang with libFuzzer, for the fuzz targets
  --python PATH    the Python that builds (default: python3)
  --self-test      test this script itself
  --help           this text

examples:
  sudo scripts/install_build_deps.sh -y
  scripts/install_build_deps.sh --check --python .venv/bin/python
  scripts/install_build_deps.sh --dry-run --platform arm
  sudo scripts/install_build_deps.sh -y --tests
  sudo scripts/install_build_deps.sh -y --containers
  sudo scripts/install_build_deps.sh -y --fuzz
EOF
}

fail() {
  printf 'install_build_deps: %s\n' "$*" >&2
  exit 2
}

# family OS_RELEASE_FILE: prints "debian" or stops with the reason.
family() {
  local file=$1 id='' like=''
  [ -r "$file" ] || fail "expected $file to tell the distribution; got none. Install by hand: $(roles)."
  # shellcheck disable=SC1090
  id=$(. "$file" && printf '%s' "${ID:-}")
  # shellcheck disable=SC1090
  like=$(. "$file" && printf '%s' "${ID_LIKE:-}")
  case " $id $like " in
    *' debian '* | *' ubuntu '*) printf 'debian\n' ;;
    *) fail "expected Debian or Ubuntu, got '${id:-unknown}'. Install by hand: $(roles)." ;;
  esac
}

roles() {
  printf 'g++ 11 or newer, the Python 3.10+ headers, the Python module venv, the CA certificates'
}

# newest_clang: reads package names, prints the newest version of Clang among them that the fuzz targets are tried with.
newest_clang() {
  sed -n 's/^clang-\(1[6-9]\)$/\1/p' | sort -n | tail -n 1
}

# fuzz_packages: prints the packages that bring libFuzzer; reads the names of those there are.
fuzz_packages() {
  local version
  version=$(newest_clang)
  if [ -n "$version" ]; then
    printf '%s\n' "clang-$version" "libclang-rt-$version-dev" "llvm-$version"
  else
    printf '%s\n' clang llvm
  fi
}

# has_libfuzzer: whether any Clang links a program of libFuzzer.
has_libfuzzer() {
  local compiler
  for compiler in "${CXX:-clang++}" $(compgen -c clang++- | sort -u); do
    case $compiler in
      *clang*)
        printf 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
          "$compiler" -x c++ - -o /dev/null -fsanitize=fuzzer,address,undefined 2>/dev/null && return
        ;;
    esac
  done
  return 1
}

# packages PLATFORM ARCHITECTURE TESTS CONTAINERS FUZZ: prints the package names of a Debian-like system.
packages() {
  local platform=$1 architecture=$2 tests=${3:-0} containers=${4:-0} fuzz=${5:-0}
  printf '%s\n' ca-certificates g++ python3 python3-dev python3-venv
  if [ "$tests" != 0 ]; then
    printf '%s\n' chromium nodejs
    if [ "$architecture" = x86_64 ] && [ "$platform" != arm ]; then printf 'g++-aarch64-linux-gnu\n'; fi
  fi
  [ "$containers" = 0 ] ||
    printf '%s\n' podman runc netavark aardvark-dns iptables catatonit uidmap slirp4netns fuse-overlayfs \
      mmdebstrap arch-test qemu-user-static binfmt-support
  if [ "$fuzz" != 0 ]; then apt-cache pkgnames clang- | fuzz_packages; fi
  case $platform in
    x86 | cuda)
      [ "$architecture" = x86_64 ] || fail "platform $platform needs an x86_64 machine; this one is $architecture."
      ;;
    arm)
      case $architecture in
        x86_64) printf '%s\n' g++-aarch64-linux-gnu qemu-user-static ;;
        aarch64) ;;
        *) fail "platform arm needs an x86_64 or aarch64 machine; this one is $architecture." ;;
      esac
      ;;
    *) fail "unknown platform '$platform'; known: x86, arm, cuda." ;;
  esac
}

has_python_headers() {
  "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' 2>/dev/null
}

# own_platform ARCHITECTURE: prints the platform of a machine.
own_platform() {
  case $1 in
    aarch64) printf 'arm\n' ;;
    *) printf 'x86\n' ;;
  esac
}

# missing PLATFORM PYTHON TESTS FUZZ: prints what a build or, with TESTS or FUZZ, a test lacks, in words that a person can
# act on.
missing() {
  local platform=$1 python=$2 tests=${3:-0} fuzz=${4:-0}
  if [ "$fuzz" != 0 ]; then
    has_libfuzzer || printf 'Clang with libFuzzer (clang, libclang-rt)\n'
    return
  fi
  if [ "$tests" != 0 ]; then
    command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
      printf 'a browser (chromium)\n'
    command -v node >/dev/null || printf 'Node (node)\n'
    if [ "$(uname -m)" = x86_64 ]; then
      command -v aarch64-linux-gnu-g++ >/dev/null || printf 'a cross compiler (aarch64-linux-gnu-g++)\n'
    fi
    return
  fi
  command -v g++ >/dev/null || printf 'a C++ compiler (g++)\n'
  if ! command -v "$python" >/dev/null; then
    printf 'Python (%s)\n' "$python"
  else
    has_python_headers "$python" || printf 'the headers of %s (Python.h)\n' "$python"
  fi
  if [ "$platform" = arm ] && [ "$(uname -m)" = x86_64 ]; then
    command -v aarch64-linux-gnu-g++ >/dev/null || printf 'a cross compiler (aarch64-linux-gnu-g++)\n'
    command -v qemu-aarch64-static >/dev/null || printf 'an emulator (qemu-aarch64-static)\n'
  fi
}

# commands YES PACKAGE...: prints the commands that install packages, one a line.
commands() {
  local yes=$1
  shift
  printf 'apt-get update\n'
  printf 'apt-get install --no-install-recommends%s %s\n' "$yes" "$*"
}

install() {
  local yes=$1 dry=$2 platform=$3 tests=$4 containers=$5 fuzz=$6
  local list line script
  local -a lines
  script=$(realpath "${BASH_SOURCE[0]}")
  family /etc/os-release >/dev/null
  list=$(packages "$platform" "$(uname -m)" "$tests" "$containers" "$fuzz")
  if [ "$dry" = 1 ]; then
    # shellcheck disable=SC2086
    commands "$yes" $list
    return
  fi
  if [ "$(id -u)" != 0 ]; then
    printf 'install_build_deps: needs root. Run this line, then try again:\n  sudo bash %s -y%s\n' "$script" \
      " --platform $platform" >&2
    exit 3
  fi
  # shellcheck disable=SC2086
  mapfile -t lines < <(commands "$yes" $list)
  for line in "${lines[@]}"; do
    printf '+ %s\n' "$line"
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $line
  done
}

self_test() {
  local scratch failures=0
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$scratch'" EXIT
  expect() {
    local what=$1 want=$2 got=$3
    if [ "$want" = "$got" ]; then
      printf 'ok: %s\n' "$what"
    else
      printf 'FAILED: %s\n  expected: %s\n  got: %s\n' "$what" "$want" "$got"
      failures=$((failures + 1))
    fi
  }
  printf 'ID=debian\n' >"$scratch/debian"
  printf 'ID=linuxmint\nID_LIKE="ubuntu debian"\n' >"$scratch/mint"
  printf 'ID=fedora\n' >"$scratch/fedora"
  expect 'Debian is known' debian "$(family "$scratch/debian")"
  expect 'a derivative is known' debian "$(family "$scratch/mint")"
  expect 'another distribution stops' 2 "$( (family "$scratch/fedora") >/dev/null 2>&1 || echo $?)"
  expect 'no os-release stops' 2 "$( (family "$scratch/none") >/dev/null 2>&1 || echo $?)"
  expect 'x86 has no cross compiler' '' "$(packages x86 x86_64 | grep aarch64 || true)"
  expect 'arm on x86_64 has one' g++-aarch64-linux-gnu "$(packages arm x86_64 | grep aarch64)"
  expect 'arm on aarch64 has none' '' "$(packages arm aarch64 | grep aarch64 || true)"
  expect 'x86 on aarch64 stops' 2 "$( (packages x86 aarch64) >/dev/null 2>&1 || echo $?)"
  expect 'an unknown platform stops' 2 "$( (packages vax x86_64) >/dev/null 2>&1 || echo $?)"
  expect 'an aarch64 machine is of platform arm' arm "$(own_platform aarch64)"
  expect 'a build needs no browser' '' "$(packages x86 x86_64 | grep chromium || true)"
  expect 'the tests need one' chromium "$(packages x86 x86_64 1 | grep chromium)"
  expect 'the tests cross-compile' g++-aarch64-linux-gnu "$(packages x86 x86_64 1 | grep aarch64)"
  expect 'a package is named once' g++-aarch64-linux-gnu "$(packages arm x86_64 1 | grep aarch64)"
  expect 'a build needs no container engine' '' "$(packages x86 x86_64 | grep podman || true)"
  expect '--containers brings one' podman "$(packages x86 x86_64 0 1 | grep podman)"
  expect 'the newest Clang is taken' 'clang-19 libclang-rt-19-dev llvm-19' \
    "$(printf '%s\n' clang-format-21 clang-22 clang-9 clang-19 clang-16 | fuzz_packages | xargs)"
  expect 'an old one is not asked for by its version' 'clang llvm' "$(printf 'clang-14\n' | fuzz_packages | xargs)"
  expect 'a build needs no Clang' '' "$(packages x86 x86_64 1 1 | grep clang || true)"
  expect 'a missing Clang is named' 'Clang with libFuzzer (clang, libclang-rt)' \
    "$(has_libfuzzer() { false; } && missing x86 python3 0 1)"
  expect 'the question is asked by default' 'apt-get install --no-install-recommends a b' "$(commands '' a b | tail -n 1)"
  expect '-y is passed on' 'apt-get install --no-install-recommends -y a' "$(commands ' -y' a | tail -n 1)"
  expect 'a missing Python is named' 'Python (/no/such/python)' "$(missing x86 /no/such/python | tail -n 1)"
  [ "$failures" = 0 ]
}

main() {
  local yes='' dry=0 platform='' python=python3 tests=0 containers=0 fuzz=0 action=install
  while [ $# -gt 0 ]; do
    case $1 in
      -y) yes=' -y' ;;
      --dry-run) dry=1 ;;
      --tests) tests=1 ;;
      --containers) containers=1 ;;
      --fuzz) fuzz=1 ;;
      --print) action=print ;;
      --check) action=check ;;
      --self-test) action=self-test ;;
      --platform | --python)
        [ $# -gt 1 ] || fail "$1 needs a value; see --help."
        if [ "$1" = --platform ]; then platform=$2; else python=$2; fi
        shift
        ;;
      --help | -h)
        usage
        return
        ;;
      *) fail "unknown option '$1'; see --help." ;;
    esac
    shift
  done
  [ -n "$platform" ] || platform=$(own_platform "$(uname -m)")
  case $action in
    print) packages "$platform" "$(uname -m)" "$tests" "$containers" "$fuzz" ;;
    check)
      local lacking
      lacking=$(missing "$platform" "$python" "$tests" "$fuzz")
      [ -z "$lacking" ] && return
      printf '%s\n' "$lacking"
      return 1
      ;;
    self-test) self_test ;;
    install) install "$yes" "$dry" "$platform" "$tests" "$containers" "$fuzz" ;;
  esac
}

main "$@"
