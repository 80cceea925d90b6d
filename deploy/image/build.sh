#!/usr/bin/env bash
# Build the container image from this tree, without a registry of images: Debian's packages by mmdebstrap for the base,
# PyPI for the rest. Needs buildah and mmdebstrap (apt-get install buildah mmdebstrap), and root or a user namespace.
#
#   deploy/image/build.sh [--tag localhost/danube:dev] [--extras broker,mcp,s3,tui] [--base-tar FILE] [-o FILE.tar]
#
# The same commit, the same Debian packages and the same requirements give the same layers: times are the commit's.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd -P)
usual=broker,mcp,s3,tui
tag=localhost/danube:dev extras=$usual base_tar= out= suite=bookworm
while [ $# -gt 0 ]; do
    case $1 in
        --tag) tag=${2:?--tag needs a name}; shift 2 ;;
        --extras) extras=${2:?--extras needs a list}; shift 2 ;;
        --base-tar) base_tar=${2:?--base-tar needs a file}; shift 2 ;;
        -o) out=${2:?-o needs a file}; shift 2 ;;
        *) echo "error: unknown argument '$1': see the head of $0" >&2; exit 2 ;;
    esac
done
for program in buildah git; do
    command -v $program >/dev/null || { echo "error: $program is not installed: apt-get install $program" >&2; exit 1; }
done
# What the end needs is looked for before the quarter of an hour that the base takes.
python=${PYTHON:-$root/.venv/bin/python}
[ -n "$base_tar" ] || command -v mmdebstrap >/dev/null || { echo "error: mmdebstrap is not installed: apt-get install mmdebstrap" >&2; exit 1; }
"$python" -c 'import build, hatchling, pip' 2>/dev/null || {
    echo "error: $python cannot build the wheel: run tools/bootstrap dev, or name another one with build, hatchling and pip by PYTHON=" >&2
    exit 1
}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "$base_tar" ]; then
    base_tar=$work/base.tar
    # Runtime only: no compiler, no pip; what nobody reads in a container stays out.
    mmdebstrap --quiet --variant=essential --include=ca-certificates,libstdc++6,python3 \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/info/*' \
        --customize-hook='rm -rf "$1"/var/cache/* "$1"/var/log/* "$1"/var/lib/apt/lists/*' \
        --customize-hook='chroot "$1" /usr/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11 || true' \
        $suite "$base_tar"
fi

mkdir -p "$work/dist"
"$python" -m build --wheel --no-isolation --outdir "$work/dist" "$root" >/dev/null
"$python" -m pip download --quiet --no-deps --dest "$work" "uv==0.13.9"
(cd "$work" && "$python" -m zipfile -e uv-*.whl uv && cp "$(find uv -path '*/scripts/uv' | head -1)" dist/uv && chmod +x dist/uv)
# What is installed is pinned beside this file, for the usual extras; a new list: this script with requirements.txt removed.
pins=$root/deploy/image/requirements.txt
resolve() {
    echo "pydanube[$extras] @ file://$(ls "$work"/dist/pydanube-*.whl)" | "$work/dist/uv" pip compile --quiet \
        --python-version 3.11 --no-header --no-annotate --generate-hashes --unsafe-package pydanube - | grep -v '^pydanube'
}
if [ "$extras" != "$usual" ]; then
    resolve >"$work/dist/requirements.txt"
else
    [ -f "$pins" ] || resolve >"$pins"
    cp "$pins" "$work/dist/requirements.txt"
fi

base=$(buildah from scratch)
buildah add --quiet "$base" "$base_tar" / >/dev/null
buildah commit --quiet --timestamp "$SOURCE_DATE_EPOCH" --rm "$base" localhost/danube-base:$suite >/dev/null
certificates=()
if [ -n "${SSL_CERT_FILE:-}" ]; then # a network with a certificate authority of its own
    certificates=(--volume "$SSL_CERT_FILE:/etc/ssl/certs/ca-certificates.crt:ro" --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt)
fi
buildah build --quiet --isolation "${BUILDAH_ISOLATION:-chroot}" --network host --timestamp "$SOURCE_DATE_EPOCH" \
    ${certificates[@]+"${certificates[@]}"} --unsetenv SSL_CERT_FILE \
    --build-arg BASE=localhost/danube-base:$suite --format docker \
    --file "$root/deploy/image/Containerfile" --tag "$tag" "$work"
if [ -n "$out" ]; then buildah push --quiet "$tag" "docker-archive:$out:$tag"; fi
echo "built $tag"
