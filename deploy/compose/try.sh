#!/usr/bin/env bash
# Publish, kill the broker in the middle, start it again, and show that nothing that was acknowledged is lost.
#
#   deploy/compose/try.sh [FILE]         FILE: deploy/compose/one.yaml
#
# COMPOSE="podman-compose" chooses another program than `docker compose`. What it starts it removes again.
set -euo pipefail
file=${1:-$(dirname "$0")/one.yaml}
[ -f "$file" ] || { echo "error: $file is no file: name a compose file" >&2; exit 2; }
compose="${COMPOSE:-docker compose} -p danube-try -f $file"
messages=${MESSAGES:-20000}
[[ $messages =~ ^[1-9][0-9]{0,6}$ ]] || { echo "error: MESSAGES is '$messages': name a number from 1 to 9999999" >&2; exit 2; }
program=${compose%% *}
command -v "$program" >/dev/null || { echo "error: there is no program '$program': set COMPOSE, such as COMPOSE=podman-compose" >&2; exit 2; }
work=$(mktemp -d)
cleanup() {
    $compose down -v >"$work/down.log" 2>&1 || cat "$work/down.log" >&2
    rm -rf "$work"
}
trap cleanup EXIT
danube() { $compose exec -T broker danube "$@"; }
wait_ready() {
    local until=$((SECONDS + ${WAIT_S:-120}))
    while [ "$SECONDS" -lt "$until" ]; do
        if danube brokers status >/dev/null 2>&1; then return; fi
        sleep 0.5
    done
    echo "error: the broker was not ready within ${WAIT_S:-120} s" >&2
    $compose logs broker 2>&1 | tail -20 >&2
    exit 1
}

$compose up -d broker || {
    echo "error: the broker did not start; its image ${DANUBE_IMAGE:-localhost/danube:dev} is made by deploy/image/build.sh" >&2
    exit 1
}
wait_ready
echo "ready; publishing $messages messages, killing the broker half-way"
seq "$messages" >"$work/sent"
half=$((messages / 2))
head -n $half "$work/sent" | danube produce try --json >"$work/first.json"
# The second half goes on while the container is killed, its producer with it: of what it sent, the beginning must be there.
(tail -n +$((half + 1)) "$work/sent" | danube produce try --rate 500 --timeout 5s >/dev/null 2>&1 || true) &
danube consume try --from "offset:$half" --count 1 --for 60s >/dev/null # it has begun
$compose kill -s KILL broker >/dev/null 2>&1
wait
$compose start broker >/dev/null 2>&1 || $compose up -d broker || {
    echo "error: the broker did not start; its image ${DANUBE_IMAGE:-localhost/danube:dev} is made by deploy/image/build.sh" >&2
    exit 1
}
wait_ready
danube consume try --exit --format raw >"$work/read"
read_lines=$(wc -l <"$work/read")
head -n "$half" "$work/read" | cmp - <(head -n $half "$work/sent") || { echo "LOST: the first $half acknowledged messages are not all there" >&2; exit 5; }
cmp <(head -n "$read_lines" "$work/sent") "$work/read" || { echo "LOST: what was read has a gap" >&2; exit 5; }
echo "$half messages were acknowledged before the kill, $read_lines are there after it, in order and without a gap: nothing lost"
