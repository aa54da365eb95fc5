#!/bin/sh
# Installs what the tests need from the system, where it is missing: Debian's chromium, which shows the dashboard,
# Java 17 or newer, on which Spark runs (the Java that comes as a wheel lacks a module that Spark asks for), nginx, which
# stands in front of the service, and systemd's own check of units.
set -eu

missing=""
command -v chromium >/dev/null 2>&1 || missing="chromium"
java=$(java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p' || true)
[ "${java:-0}" -ge 17 ] || missing="$missing default-jre-headless"
command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ] || missing="$missing nginx-light"
command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo -n"
fi
if ! command -v apt-get >/dev/null 2>&1 || ! $as_root true 2>/dev/null; then
    echo "Some tests need what is missing here: $missing. Install it, or run this script as root on Debian." >&2
    exit 1
fi
echo "Some tests need what is missing here. This installs it with apt-get${as_root:+ (sudo)}: $missing." >&2
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -qq
# shellcheck disable=SC2086 # the names are words
$as_root apt-get install -y -qq --no-install-recommends $missing
