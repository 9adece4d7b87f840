#!/bin/sh
# What some tests need and pip does not bring: a headless browser, a PostgreSQL server, promtool, strace.
#   debian-packages.sh ask      prints the packages to install: those that lack, if that is allowed; says what is skipped
#   debian-packages.sh install PACKAGE...
# It is allowed by JELLYBEAN_TEST_APT=1, or by whoever answers the question at the terminal.
set -u
cd "$(dirname "$0")/../.." || exit 2

missing() {
  for browser in chromium chromium-browser google-chrome; do
    command -v "$browser" >/dev/null && break
  done || echo chromium
  ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 || echo postgresql
  command -v strace >/dev/null || echo strace
  command -v promtool >/dev/null || [ -x .venv/bin/promtool ] || echo prometheus
}

# Run a command as root, by sudo only if that asks for no password.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo -n "$@" 2>/dev/null
  fi
}

ask() {
  lacking=$(missing | paste -sd' ' -)
  [ -n "$lacking" ] || return 0
  if ! as_root true || ! command -v apt-get >/dev/null; then
    echo "tests that need these Debian packages will skip: $lacking" >&2
    return 0
  fi
  allowed=${JELLYBEAN_TEST_APT:-0}
  if [ "$allowed" != 1 ] && [ -t 0 ] && [ -t 2 ]; then
    printf 'Install these Debian packages as root, for tests that skip otherwise: %s? [y/N] ' "$lacking" >&2
    read -r answer
    case $answer in y | Y | yes) allowed=1 ;; esac
  fi
  if [ "$allowed" = 1 ]; then
    echo "$lacking"
  else
    echo "tests that need these Debian packages will skip: $lacking (JELLYBEAN_TEST_APT=1 installs them as root)" >&2
  fi
}

# promtool alone is taken out of its package: installed, that starts a server.
install() {
  [ $# -gt 0 ] || return 0
  log=$(mktemp) folder=$(mktemp -d)
  {
    as_root apt-get update -qq
    wanted=$(printf '%s\n' "$@" | grep -v prometheus)
    # shellcheck disable=SC2086
    [ -z "$wanted" ] || as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $wanted
    case " $* " in
      *" prometheus "*)
        (cd "$folder" && chmod 755 . && apt-get download -qq prometheus && dpkg -x prometheus_*.deb .) &&
          cp "$folder/usr/bin/promtool" .venv/bin/promtool
        ;;
    esac
  } >"$log" 2>&1
  lacking=$(missing | paste -sd' ' -)
  [ -z "$lacking" ] || echo "not installed, so that tests will skip: $lacking: $(tail -n 3 "$log")" >&2
  rm -rf "$log" "$folder"
}

command=$1
shift
"$command" "$@"
